package dataplane

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Fake is an iptables in memory, for tests that run anywhere. It has the tables filter, nat and mangle and changes each
// of them atomically. It refuses what iptables or the kernel refuse: jumps to missing or built-in chains, removal of
// chains in use, loops, names that are too long, and matches and targets with wrong arguments, in the wrong table, or
// reached from a hook that they do not support. It also refuses some things that they accept: rules that iptables-save
// would print differently, because a backend that reads back what it wrote would see a difference; loops that no packet
// reaches; and errors that iptables-legacy does not check after a rule that matches every packet.
//
// Its limits: it evaluates no packets. It knows the matches and targets that service proxies use, and refuses others.
// It always names the line at fault, which iptables-legacy often cannot. It has no limits in size, nor nf_tables' limit
// of 16 nested jumps. It assumes that every ipset exists, and distinguishes those of IPv4 and IPv6 only by name.
type Fake struct {
	mu         sync.Mutex
	features   Features
	tables     []*fakeTable
	generation uint64
	batches    []*Batch

	// FailRestore, if set, is called before each Restore. If it returns an error, Restore returns that and changes
	// nothing.
	FailRestore func(*Batch) error
	// FailRule, if set, is called for each rule of a Restore; its error fails the rule's table.
	FailRule func(table Table, chain, rule string) error
}

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake that reports itself as iptables-nft 1.8.9.
func NewFake(f model.Family) *Fake {
	tables := []*fakeTable{newFakeTable(Mangle), newFakeTable(NAT), newFakeTable(Filter)}
	return &Fake{features: Features{Family: f, Variant: NFT}, tables: tables}
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
		// Errors found at the end of a table belong to a rule, too.
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

// ruleError is an error in a rule that is found only when the table is complete.
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
