package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// write applies the plan: only the changes if the content of the tables is known, otherwise everything that differs.
func (f *family) write(ctx context.Context) error {
	read := !f.state.isTrusted()
	if read {
		if err := f.read(ctx); err != nil {
			return err
		}
		for _, c := range f.tables {
			if c.unreadable {
				klog.FromContext(ctx).Info(
					"A rule added with nft prevents iptables-save from printing the table: all rules are rewritten,"+
						" and changes by others go unnoticed", "family", f.features.Family, "table", c.table)
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
		f.metrics.written(b)
		return nil
	}
	return f.restore(ctx, b, read)
}

// maxInUse is how many chains that cannot be removed one write finds one by one.
const maxInUse = 10

// unlessInUse returns the error of a write, unless a chain could not be removed because a chain of others jumps to it:
// then it writes again, and such chains are only emptied. One such jump would otherwise keep every later change from
// the table. If there are very many, the last attempt removes none of that table.
func (f *family) unlessInUse(ctx context.Context, err error) error {
	for n := range maxInUse + 1 {
		var refused *dp.RestoreError
		if !errors.As(err, &refused) || refused.RefusedRemoval() == "" {
			return err
		}
		c := f.tableNamed(refused.Table)
		if c.inUse[refused.RefusedRemoval()] {
			return err
		}
		klog.FromContext(ctx).Info("A chain that is no longer needed is only emptied: others jump to it", "family",
			f.features.Family, "table", c.table, "chain", refused.RefusedRemoval())
		c.inUse[refused.RefusedRemoval()] = true
		if n == maxInUse {
			c.keepUnwanted()
		}
		err = f.write(ctx)
	}
	return err
}

func (f *family) tableNamed(t dp.Table) *chains {
	return f.tables[slices.IndexFunc(f.tables[:], func(c *chains) bool { return c.table == t })]
}

// changes returns everything that has to be written. Each table takes effect by itself: a service that gets its first
// endpoint is translated before it is no longer refused, and one that loses its last is refused before it is no longer
// translated. Where a change does both, the side with more rules decides.
func (f *family) changes() *dp.Batch {
	nat, filter := f.tables[inNAT].changes(), f.tables[inFilter].changes()
	most := math.MaxInt
	if f.features.Variant == dp.NFT {
		most = cmp.Or(f.backend.options.maxNames, dp.MaxNames)
	}
	parts := [][]dp.TableBatch{f.tables[inNAT].split(nat, most), f.tables[inFilter].split(filter, most)}
	if f.tables[inFilter].growsBy(filter) > 0 {
		slices.Reverse(parts)
	}
	return &dp.Batch{Tables: slices.Concat(parts...)}
}

// restore writes all changes; read says whether they were found by reading the tables.
func (f *family) restore(ctx context.Context, b *dp.Batch, read bool) error {
	next := f.state
	f.state = unknown
	before, err := f.dataplane.Generation(ctx)
	if err != nil {
		return err
	}
	// Changes by others during a long read or write go unnoticed, so the tables are read once more.
	if read || before != f.generation {
		next = suspect
	}
	if err := f.dataplane.Restore(ctx, b); err != nil {
		if ctx.Err() == nil {
			f.metrics.failed(!read)
		}
		return err
	}
	f.metrics.written(b)
	after, err := f.dataplane.Generation(ctx)
	if err != nil {
		return err
	}
	for _, t := range b.Tables {
		f.tableNamed(t.Table).done(t)
	}
	f.state, f.generation = next, before
	f.adopt(before, after)
	f.countRules()
	return nil
}

// adopt notes the generation that our own change produced. iptables-nft has one for both families.
func (f *family) adopt(before, after uint64) {
	for _, o := range f.backend.families {
		if (o == f || o.features.Variant == dp.NFT) && o.generation == before {
			o.generation = after
		}
	}
}

func (f *family) countRules() {
	for _, c := range f.tables {
		f.metrics.applied(c.table, c.rules+len(c.jumps))
	}
}

// read reads the tables, and touches the chains that differ. A table that iptables cannot print counts as one without
// any of our chains. The counters that rules use exist then.
func (f *family) read(ctx context.Context) error {
	generation, err := f.dataplane.Generation(ctx) // before the rules, so that nothing is missed
	if err != nil {
		return err
	}
	f.state, f.generation = unknown, generation
	f.ensureCounters(ctx)
	for _, c := range f.tables {
		table, err := f.dataplane.Read(ctx, c.table, chainPrefix)
		if c.unreadable = errors.Is(err, dp.ErrIncompatible); c.unreadable {
			c.touchAll()
			continue
		}
		if err != nil {
			return fmt.Errorf("read the rules: %w", err)
		}
		c.compare(table)
	}
	return nil
}

// cleanUp removes all our chains and the jumps to them. The error names the chains that are only emptied, because
// others jump to them.
func cleanUp(ctx context.Context, d dp.Interface) error {
	all := func(dp.Table, string) bool { return true }
	if err := dp.RemoveChains(ctx, d, chainPrefix, all, dp.NAT, dp.Filter); err != nil {
		return fmt.Errorf("%v, iptables-%s: %w", d.Features().Family, d.Features().Variant, err)
	}
	return nil
}
