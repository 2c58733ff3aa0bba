package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// RemoveChains removes from tables the chains whose names begin with prefix and for which ours is true, and the rules
// of built-in chains that jump to them. It goes on after a table that cannot be read or changed; the error joins these.
//
// The jumps from PREROUTING and OUTPUT of table nat go first, in a transaction of their own. A packet whose destination
// was just translated there still has to pass FORWARD, which may have to accept it, and POSTROUTING, which may have to
// masquerade it. What it finds then is decided for its whole connection: a SYN that is sent again finds the same.
func RemoveChains(ctx context.Context, d Interface, prefix string, ours func(chain string) bool,
	tables ...Table) error {
	translating := TableBatch{Table: NAT}
	var rest []TableBatch
	var errs []error
	for _, name := range tables {
		state, err := d.Read(ctx, name, prefix)
		if err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", name, err))
			continue
		}
		t := TableBatch{Table: name, Remove: slices.Sorted(maps.Keys(state.Chains))}
		t.Remove = slices.DeleteFunc(t.Remove, func(chain string) bool { return !ours(chain) })
		for _, jump := range state.Jumps {
			if !ours(Target(jump.Rule)) {
				continue
			}
			if name == NAT && jump.Chain != "POSTROUTING" {
				translating.Delete = append(translating.Delete, jump)
			} else {
				t.Delete = append(t.Delete, jump)
			}
		}
		rest = append(rest, t)
	}
	for _, t := range append([]TableBatch{translating}, rest...) {
		if err := d.Restore(ctx, &Batch{Tables: []TableBatch{t}}); err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", t.Table, err))
		}
	}
	return errors.Join(errs...)
}
