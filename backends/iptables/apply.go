package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
)

// write makes the tables follow what is planned: what changed, if it is known what is there, and otherwise what is
// different.
func (f *family) write(ctx context.Context) error {
	read := !f.state.isTrusted()
	if read {
		found, err := f.read(ctx)
		if err != nil {
			return err
		}
		for _, c := range f.tables() {
			if c.unreadable {
				klog.FromContext(ctx).Info("Somebody has put into a table what iptables cannot print, with nft: everything of "+
					"ours is written anew, and what others change is not noticed", "family", f.features.Family,
					"table", c.table)
			}
		}
		if !f.isDifferent() {
			f.state = found
		}
	} else if generation, err := f.dataplane.Generation(ctx); err != nil || generation != f.generation {
		f.state = suspect
	}
	if !f.isDifferent() {
		f.countRules()
		f.metrics.written(f.features.Family, nil)
		return nil
	}
	return f.restore(ctx, read)
}

// isDifferent tells whether anything in the tables is not as it should be.
func (f *family) isDifferent() bool {
	if len(f.nat.touched)+len(f.filter.touched) > 0 {
		return true
	}
	for table, want := range f.wantedJumps() {
		if gone, come := jumpChanges(f.jumps[table], want); len(gone)+len(come) > 0 {
			return true
		}
	}
	return false
}

// restore writes what is different; read tells that all of it was found by reading.
func (f *family) restore(ctx context.Context, read bool) error {
	wanted := f.wantedJumps()
	b := &dp.Batch{}
	// Table nat is first: a packet for a service that has its first endpoint is not refused any more then, whatever
	// filter says.
	for _, c := range f.tables() {
		t := c.changes()
		if c.unreadable {
			t.Delete, t.Insert = wanted[c.table], wanted[c.table] // once, whether they are there or not
		} else {
			t.Delete, t.Insert = jumpChanges(f.jumps[c.table], wanted[c.table])
		}
		b.Tables = append(b.Tables, t)
	}
	next := f.state
	f.state = unknown
	before, err := f.dataplane.Generation(ctx)
	if err != nil {
		return err
	}
	// What others change while everything is read and much is written is not seen: it is looked at once more.
	if read || before != f.generation {
		next = suspect
	}
	if err := f.dataplane.Restore(ctx, b); err != nil {
		if ctx.Err() == nil {
			f.metrics.failed(f.features.Family, !read)
		}
		return err
	}
	f.metrics.written(f.features.Family, b)
	after, err := f.dataplane.Generation(ctx)
	if err != nil {
		return err
	}
	f.nat.done(b.Tables[0])
	f.filter.done(b.Tables[1])
	f.jumps, f.state, f.generation = wanted, next, before
	f.adopt(before, after)
	f.countRules()
	return nil
}

// adopt takes over the generation that we have made. iptables-nft has one for both families.
func (f *family) adopt(before, after uint64) {
	for _, o := range f.all {
		if (o == f || o.features.Variant == dp.NFT) && o.generation == before {
			o.generation = after
		}
	}
}

// countRules notes how many rules are ours, with those in built-in chains.
func (f *family) countRules() {
	for _, c := range f.tables() {
		f.metrics.applied(f.features.Family, c.table, c.rules+len(f.jumps[c.table]))
	}
}

// read finds out what is there, and returns the state if nothing is different. A table that iptables cannot print is
// taken for one that has nothing of what is wanted.
func (f *family) read(ctx context.Context) (state, error) {
	generation, err := f.dataplane.Generation(ctx) // before the rules, so that nothing is missed
	if err != nil {
		return unknown, err
	}
	f.state, f.generation = unknown, generation
	found := known
	for _, c := range f.tables() {
		table, err := f.dataplane.Read(ctx, c.table, chainPrefix)
		if c.unreadable = errors.Is(err, dp.ErrIncompatible); c.unreadable {
			found = unreadable
			c.touchAll()
			continue
		}
		if err != nil {
			return unknown, fmt.Errorf("read the rules: %w", err)
		}
		c.compare(table)
		f.jumps[c.table] = table.Jumps
	}
	return found, nil
}

// jumpChanges tells what leads from the jumps that are there to those that are wanted. New ones are put before
// everything else in their chains; the others stay where they are.
func jumpChanges(have, want []dp.BuiltinRule) (gone, come []dp.BuiltinRule) {
	rest := slices.Clone(have)
	for _, w := range want {
		if i := slices.Index(rest, w); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
		} else {
			come = append(come, w)
		}
	}
	return rest, come
}

// cleanUp removes all our chains and what leads to them.
func cleanUp(ctx context.Context, d dp.Interface) error {
	b := &dp.Batch{}
	for _, table := range []dp.Table{dp.NAT, dp.Filter} {
		state, err := d.Read(ctx, table, chainPrefix)
		if err != nil {
			return err
		}
		t := dp.TableBatch{Table: table, Delete: state.Jumps}
		for name := range state.Chains {
			t.Remove = append(t.Remove, name)
		}
		slices.Sort(t.Remove)
		b.Tables = append(b.Tables, t)
	}
	if b.IsEmpty() {
		return nil
	}
	return d.Restore(ctx, b)
}
