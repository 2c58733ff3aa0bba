package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Fake is an iptables in memory, for tests that run anywhere. It has the tables filter, nat and mangle and changes each
// of them wholly or not at all. It refuses what iptables or the kernel refuse: jumps to chains that are not there, also
// to built-in ones, removal of chains in use, loops, names that are too long, matches and targets with wrong arguments,
// in the wrong table, or where packets come from a hook that they cannot be used in. It refuses what they would take,
// too: what iptables-save would print otherwise, because then a backend that reads back what it wrote sees a
// difference; loops that no packet comes by; and what iptables-legacy does not look at after a rule that takes every
// packet.
//
// Its limits: it evaluates no packets. It knows the matches and targets that service proxies use, and refuses others.
// It always knows which line is at fault, which iptables-legacy often does not. It does not know that nf_tables follows
// no more than 16 jumps, nor what is too big. It takes an ipset for granted, and only the name tells those of IPv4 and
// IPv6 apart.
type Fake struct {
	mu         sync.Mutex
	features   Features
	tables     []*fakeTable
	generation uint64
	batches    []*Batch

	// FailRestore, if set, is asked before each Restore; its error is returned and nothing is done.
	FailRestore func(*Batch) error
	// FailRule, if set, is asked about each rule of a Restore; its error fails the rule's table.
	FailRule func(table Table, chain, rule string) error
}

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake that says of itself that it is iptables-nft 1.8.9.
func NewFake(f model.Family) *Fake {
	tables := []*fakeTable{newFakeTable(Mangle), newFakeTable(NAT), newFakeTable(Filter)}
	return &Fake{features: Features{Family: f, Variant: NFT, Version: "1.8.9"}, tables: tables}
}

// Features implements [Interface].
func (f *Fake) Features() Features { return f.features }

// Restore implements [Interface].
func (f *Fake) Restore(ctx context.Context, b *Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return f.failed(err)
	}
	if f.FailRestore != nil {
		if err := f.FailRestore(b); err != nil {
			var r *RestoreError
			if errors.As(err, &r) {
				return err
			}
			return f.failed(err)
		}
	}
	if err := f.restore(b, f.FailRule); err != nil {
		return err
	}
	f.batches = append(f.batches, b)
	return nil
}

// RestoreAsSomebodyElse does what another program does with iptables-restore --noflush: no fault is injected, and it is
// not one of Batches.
func (f *Fake) RestoreAsSomebodyElse(b *Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restore(b, nil)
}

func (f *Fake) failed(err error) *RestoreError {
	return &RestoreError{Family: f.features.Family, Err: err}
}

func (f *Fake) restore(b *Batch, failRule func(Table, string, string) error) error {
	if err := b.check(); err != nil {
		return f.failed(err)
	}
	a := fakeApply{fake: f, failRule: failRule}
	for l := range b.lines() {
		err := a.line(&l)
		if err == nil {
			continue
		}
		a.undo()
		failed := f.failed(err)
		failed.at(b, l)
		// What is found out at the end of a table is some rule's fault.
		var of *ruleError
		if errors.As(err, &of) {
			failed.at(b, b.find(func(x line) bool {
				return x.table == l.table && x.chain == of.chain && x.rule == of.rule && x.verb != "-D"
			}))
		}
		return failed
	}
	return nil
}

// ruleError is a rule that turns out to be wrong when the table is complete.
type ruleError struct {
	chain, rule string
	err         error
}

func (e *ruleError) Error() string { return fmt.Sprintf("chain %s: %v", e.chain, e.err) }

func (e *ruleError) Unwrap() error { return e.err }

// Read implements [Interface].
func (f *Fake) Read(ctx context.Context, table Table, prefix string) (*State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t := f.table(table)
	if t == nil {
		return nil, fmt.Errorf("%v: table %s: %w", f.features.Family, table, ErrNoTable)
	}
	return parseSave(t.dump(), table, prefix)
}

// Generation implements [Interface]. It counts every change of every table.
func (f *Fake) Generation(ctx context.Context) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.generation, ctx.Err()
}

// Batches returns what Restore has applied since the beginning or ResetBatches.
func (f *Fake) Batches() []*Batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.batches[:len(f.batches):len(f.batches)]
}

// ResetBatches forgets the batches.
func (f *Fake) ResetBatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = nil
}

// Close implements [Interface]. The rules stay.
func (f *Fake) Close() error { return nil }

func (f *Fake) table(name Table) *fakeTable {
	for _, t := range f.tables {
		if t.name == name {
			return t
		}
	}
	return nil
}
