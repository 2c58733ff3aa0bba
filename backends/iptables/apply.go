package iptables

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
)

// apply puts in force what is planned: what changed if it is known what is in force, and otherwise what is different.
func (f *family) apply(ctx context.Context) error {
	if f.known {
		generation, err := f.dataplane.Generation(ctx)
		f.suspect = f.suspect || err != nil || generation != f.generation
	} else if err := f.read(ctx); err != nil {
		return err
	}
	for table := range f.unreadable {
		klog.FromContext(ctx).Info("Somebody has put into a table what iptables cannot print, with nft: everything of ours is written anew, and what others change is not noticed",
			"family", f.features.Family, "table", table)
	}
	if !f.isDifferent() {
		f.known = true
		f.countRules()
		f.metrics.written(f.features.Family, nil)
		return nil
	}
	return f.restore(ctx)
}

// isDifferent tells whether anything in force is not as it should be.
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

// restore puts in force what is different.
func (f *family) restore(ctx context.Context) error {
	wanted := f.wantedJumps()
	b := &dp.Batch{}
	// Table nat is first: a packet for a service that has its first endpoint is not refused any more then, whatever filter says.
	for _, c := range []*chains{f.nat, f.filter} {
		t := c.changes()
		if f.unreadable[c.table] {
			t.Delete, t.Insert = wanted[c.table], wanted[c.table] // once, whether they are there or not
		} else {
			t.Delete, t.Insert = jumpChanges(f.jumps[c.table], wanted[c.table])
		}
		b.Tables = append(b.Tables, t)
	}
	wasKnown := f.known
	f.known = false
	before, err := f.dataplane.Generation(ctx)
	if err != nil {
		return err
	}
	// What others change while everything is read and much is written is not seen: it is looked at once more.
	f.suspect = f.suspect || !wasKnown || before != f.generation
	if err := f.dataplane.Restore(ctx, b); err != nil {
		if ctx.Err() == nil {
			f.metrics.failed(f.features.Family, wasKnown)
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
	f.jumps, f.known, f.generation, f.unreadable = wanted, true, after, nil
	f.countRules()
	for _, o := range f.all { // iptables-nft has one generation for both families
		if o.features.Variant == dp.NFT && o.generation == before {
			o.generation = after
		}
	}
	return nil
}

// countRules notes how many rules are ours, with those in built-in chains.
func (f *family) countRules() {
	for _, c := range []*chains{f.nat, f.filter} {
		f.metrics.inForce(f.features.Family, c.table, c.rules+len(f.jumps[c.table]))
	}
}

// read finds out what is in force. A table that iptables cannot print is taken for one that has nothing of what is wanted.
func (f *family) read(ctx context.Context) error {
	generation, err := f.dataplane.Generation(ctx) // before the rules, so that nothing is missed
	if err != nil {
		return err
	}
	f.known, f.generation, f.suspect, f.unreadable = false, generation, false, map[dp.Table]bool{}
	for _, c := range []*chains{f.nat, f.filter} {
		state, err := f.dataplane.Read(ctx, c.table, chainPrefix)
		if errors.Is(err, dp.ErrIncompatible) {
			f.unreadable[c.table] = true
			c.touchAll()
			continue
		}
		if err != nil {
			return fmt.Errorf("read what is in force: %w", err)
		}
		c.compare(state)
		f.jumps[c.table] = state.Jumps
	}
	return nil
}

// jumpChanges tells what leads from the jumps in force to those that are wanted. New ones are put before everything else in
// their chains; those that are there stay where they are.
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
