package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
)

// write makes the tables follow what is planned: what changed, if it is known what is there, and otherwise what is
// different.
func (f *family) write(ctx context.Context) error {
	read := !f.state.isTrusted()
	if read {
		if err := f.read(ctx); err != nil {
			return err
		}
		for _, c := range f.tables() {
			if c.unreadable {
				klog.FromContext(ctx).Info("Somebody has put into a table what iptables cannot print, with nft: all our rules are "+
					"written anew, and changes by others are not noticed", "family", f.features.Family, "table", c.table)
			}
		}
	} else if generation, err := f.dataplane.Generation(ctx); err != nil || generation != f.generation {
		f.state = suspect
	}
	b := f.changes()
	if b.IsEmpty() {
		if read {
			f.state = known
		}
		f.countRules()
		f.metrics.written(f.features.Family, b)
		return nil
	}
	return f.restore(ctx, b, read)
}

// changes returns all that is not as it should be. Table nat is first: a packet for a service that has its first
// endpoint is not refused any more then, whatever filter says.
func (f *family) changes() *dp.Batch {
	wanted := f.wantedJumps()
	b := &dp.Batch{}
	for _, c := range f.tables() {
		t := c.changes()
		if c.unreadable {
			t.Delete, t.Insert = wanted[c.table], wanted[c.table] // once, whether they are there or not
		} else {
			t.Delete, t.Insert = jumpChanges(f.jumps[c.table], wanted[c.table])
		}
		b.Tables = append(b.Tables, t)
	}
	return b
}

// restore writes all changes; read tells that they were found by reading.
func (f *family) restore(ctx context.Context, b *dp.Batch, read bool) error {
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
	for i, c := range f.tables() {
		c.done(b.Tables[i])
	}
	f.jumps, f.state, f.generation = f.wantedJumps(), next, before
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

// read finds out what is there, and touches what is different. A table that iptables cannot print is taken for one that
// has nothing of what is wanted.
func (f *family) read(ctx context.Context) error {
	generation, err := f.dataplane.Generation(ctx) // before the rules, so that nothing is missed
	if err != nil {
		return err
	}
	f.state, f.generation = unknown, generation
	for _, c := range f.tables() {
		table, err := f.dataplane.Read(ctx, c.table, chainPrefix)
		if c.unreadable = errors.Is(err, dp.ErrIncompatible); c.unreadable {
			c.touchAll()
			continue
		}
		if err != nil {
			return fmt.Errorf("read the rules: %w", err)
		}
		c.compare(table)
		f.jumps[c.table] = table.Jumps
	}
	return nil
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
		b.Tables = append(b.Tables, dp.TableBatch{Table: table, Delete: state.Jumps,
			Remove: slices.Sorted(maps.Keys(state.Chains))})
	}
	if b.IsEmpty() {
		return nil
	}
	return d.Restore(ctx, b)
}
