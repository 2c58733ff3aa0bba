package dataplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
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
// A chain to which somebody else's chain jumps cannot be removed, but no longer does anything: it is emptied, and the
// error includes an [InUseError] with its name. It does not prevent the removal of others.
//
// The jumps from PREROUTING and OUTPUT of table nat are removed first, in a separate transaction. A packet that was
// just translated there still has to pass FORWARD, which may have to accept it, and POSTROUTING, which may have to
// masquerade it. That decides for its whole connection, and a retransmitted SYN gets the same result.
// With iptables-nft many chains are removed in several transactions: see [Removals].
func RemoveChains(ctx context.Context, d Interface, prefix string, ours func(table Table, chain string) bool,
	tables ...Table) error {
	most := math.MaxInt
	if d.Features().Variant == NFT {
		most = MaxNames
	}
	r := remover{
		dataplane: d,
		ours: func(table Table, chain string) bool {
			return strings.HasPrefix(chain, prefix) && ours(table, chain)
		},
		jumps: map[Table]map[string][]string{},
		kept:  map[Table][]keptChain{},
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
		remove := slices.DeleteFunc(slices.Sorted(maps.Keys(state.Chains)),
			func(chain string) bool { return !r.ours(name, chain) })
		for _, jump := range state.Jumps {
			if !r.ours(name, Target(jump.Rule)) {
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
		if err := r.apply(ctx, t); err != nil {
			errs = append(errs, fmt.Errorf("table %s: %w", t.Table, err))
		}
	}
	for _, t := range tables {
		if kept := r.kept[t]; kept != nil {
			errs = append(errs, &InUseError{t, kept})
		}
	}
	return errors.Join(errs...)
}

// InUseError names the chains of a table that RemoveChains has emptied, but could not remove, because chains of other
// programs jump to them.
type InUseError struct {
	table  Table
	chains []keptChain
}

// keptChain is a chain and the chains that jump to it; none if iptables cannot print their rules.
type keptChain struct {
	name string
	from []string
}

// Error returns the names of the chains, up to ten, each with those that jump to it.
func (e *InUseError) Error() string {
	const most = 10
	var names []string
	for _, c := range e.chains[:min(len(e.chains), most)] {
		from := "a rule made with nft"
		if len(c.from) > 0 {
			from = strings.Join(c.from[:min(len(c.from), most)], ", ")
		}
		names = append(names, fmt.Sprintf("%s (from %s)", c.name, from))
	}
	if more := len(e.chains) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("table %s: chains of others jump to chains that are left, empty: %s", e.table,
		strings.Join(names, ", "))
}

// remover removes chains from the tables of a dataplane.
type remover struct {
	dataplane Interface
	ours      func(table Table, chain string) bool
	jumps     map[Table]map[string][]string // from others' chains to ours, by target; read after a failure
	kept      map[Table][]keptChain
}

// maxUnseen is how many chains of a transaction may be in use by rules that iptables cannot print, such as one with a
// verdict map of nft. Each costs one more attempt.
const maxUnseen = 10

// apply applies a removal. If that fails, it empties chains that are in use instead of removing them.
func (r *remover) apply(ctx context.Context, t TableBatch) error {
	err := r.dataplane.Restore(ctx, &Batch{Tables: []TableBatch{t}})
	if err == nil || len(t.Remove) == 0 {
		return err
	}
	jumps := r.jumpsOfOthers(ctx, t.Table)
	inUse := func(chain string) bool { return jumps[chain] != nil }
	var kept []keptChain
	for range maxUnseen {
		if !slices.ContainsFunc(t.Remove, inUse) {
			refused := refusedRemoval(err)
			inUse = func(chain string) bool { return chain == refused }
		}
		var remove []string
		for _, chain := range t.Remove {
			if inUse(chain) {
				kept = append(kept, keptChain{chain, jumps[chain]})
				t.Chains = append(t.Chains, Chain{Name: chain})
			} else {
				remove = append(remove, chain)
			}
		}
		if len(remove) == len(t.Remove) {
			return err // for another reason
		}
		t.Remove = remove
		if err = r.dataplane.Restore(ctx, &Batch{Tables: []TableBatch{t}}); err == nil {
			r.kept[t.Table] = append(r.kept[t.Table], kept...)
			return nil
		}
	}
	return err
}

// jumpsOfOthers returns the chains of others that jump to our chains, by the latter.
func (r *remover) jumpsOfOthers(ctx context.Context, table Table) map[string][]string {
	if jumps, ok := r.jumps[table]; ok {
		return jumps
	}
	jumps := map[string][]string{}
	r.jumps[table] = jumps
	state, err := r.dataplane.Read(ctx, table, "")
	if err != nil {
		return jumps // the failed removal says which chain is in use
	}
	for _, chain := range slices.Sorted(maps.Keys(state.Chains)) {
		if r.ours(table, chain) {
			continue
		}
		for _, rule := range state.Chains[chain] {
			if to := Target(rule); r.ours(table, to) && !slices.Contains(jumps[to], chain) {
				jumps[to] = append(jumps[to], chain)
			}
		}
	}
	return jumps
}

// refusedRemoval returns the chain that could not be removed, or "" if the error does not say.
func refusedRemoval(err error) string {
	var refused *RestoreError
	if !errors.As(err, &refused) {
		return ""
	}
	return refused.RefusedRemoval()
}
