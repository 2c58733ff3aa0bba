package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// MaxNames is how many names of chains a transaction of iptables-nft should have: of chains to change, to remove, and
// to jump to. For each line iptables-nft-restore looks them up in a list of all of them, so that a transaction with
// 16,600 chains takes 22 s of processor time (1.8.9).
const MaxNames = 500

// Removals returns the removal of chains to which nothing but each other jumps, in transactions of at most so many of
// them. A chain to which another one jumps cannot be removed, so that several transactions empty all of them first.
func Removals(table Table, chains []string, most int) (batches []TableBatch) {
	if len(chains) > most {
		for part := range slices.Chunk(chains, most) {
			empty := TableBatch{Table: table, Chains: make([]Chain, len(part))}
			for i, name := range part {
				empty.Chains[i].Name = name
			}
			batches = append(batches, empty)
		}
	}
	for part := range slices.Chunk(chains, most) {
		batches = append(batches, TableBatch{Table: table, Remove: part})
	}
	return batches
}

// RemoveChains removes from tables the chains with this prefix for which ours returns true, and the rules of built-in
// chains that jump to them. It continues after a table that cannot be read or changed, and joins the errors.
//
// The jumps from PREROUTING and OUTPUT of table nat are removed first, in a separate transaction. A packet that was
// just translated there still has to pass FORWARD, which may have to accept it, and POSTROUTING, which may have to
// masquerade it. That decides for its whole connection, and a retransmitted SYN gets the same result.
// With iptables-nft many chains are removed in several transactions: see [Removals].
func RemoveChains(ctx context.Context, d Interface, prefix string, ours func(chain string) bool,
	tables ...Table) error {
	most := math.MaxInt
	if d.Features().Variant == NFT {
		most = MaxNames
	}
	translating := TableBatch{Table: NAT}
	var rest []TableBatch
	var errs []error
	for _, name := range tables {
		state, err := d.Read(ctx, name, prefix)
		if err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", name, err))
			continue
		}
		t := TableBatch{Table: name}
		remove := slices.DeleteFunc(slices.Sorted(maps.Keys(state.Chains)), func(chain string) bool { return !ours(chain) })
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
		if len(remove) <= most {
			t.Remove, remove = remove, nil
		}
		rest = append(append(rest, t), Removals(name, remove, most)...)
	}
	for _, t := range append([]TableBatch{translating}, rest...) {
		if err := d.Restore(ctx, &Batch{Tables: []TableBatch{t}}); err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", t.Table, err))
		}
	}
	return errors.Join(errs...)
}
