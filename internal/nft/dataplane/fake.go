package dataplane

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"syscall"
)

// Fake is a model of the kernel for tests that run anywhere. It checks what the kernel checks (that referenced objects
// exist, that no object in use is deleted, that keys have the right size and elements are new, that no chain jumps back
// to itself) and more (that nft can print comments, that DNAT is reached only from hooks that allow it). Its errors are
// the kernel's: syscall.ENOENT, EEXIST, EBUSY, EINVAL, ELOOP, in an [OpError].
//
// It evaluates no packets, so dynamic sets stay empty, and it has no size limits.
type Fake struct {
	mu      sync.Mutex
	tables  map[TableKey]*fakeTable
	drifted map[TableKey]bool
	drift   chan struct{}
	applied int

	// FailApply, if set, is called before each Apply. If it returns an error, Apply returns that and applies nothing.
	FailApply func(*Transaction) error
}

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake without tables.
func NewFake() *Fake {
	return &Fake{tables: map[TableKey]*fakeTable{}, drifted: map[TableKey]bool{}, drift: make(chan struct{}, 1)}
}

type fakeTable struct {
	comment string
	chains  []*fakeChain
	sets    []*fakeSet
}

type fakeChain struct {
	Chain
	rules []Rule
	used  int // rules and elements that refer to it
}

type fakeSet struct {
	Set
	elements map[string]Element
	used     int // rules that refer to it
}

func (t *fakeTable) chain(name string) *fakeChain {
	for _, c := range t.chains {
		if c.Name == name {
			return c
		}
	}
	return nil
}

func (t *fakeTable) set(name string) *fakeSet {
	for _, s := range t.sets {
		if s.Name == name {
			return s
		}
	}
	return nil
}

// Apply implements [Interface].
func (f *Fake) Apply(ctx context.Context, tx *Transaction) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.FailApply != nil {
		if err := f.FailApply(tx); err != nil {
			return err
		}
	}
	if f.drifted[tx.Table] && !tx.Unconditional {
		return ErrStale
	}
	if err := f.apply(tx, true); err != nil {
		return err
	}
	f.applied++
	return nil
}

// Check implements [Interface].
func (f *Fake) Check(ctx context.Context, tx *Transaction) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return f.apply(tx, false)
}

// ApplyAsSomebodyElse applies a transaction as another program would: Drift and Drifted report it.
func (f *Fake) ApplyAsSomebodyElse(tx *Transaction) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.apply(tx, true); err != nil {
		return err
	}
	f.drifted[tx.Table] = true
	select {
	case f.drift <- struct{}{}:
	default:
	}
	return nil
}

// ApplyUnnoticed applies a transaction as another program would while the backend does not listen: only reading the
// table shows it.
func (f *Fake) ApplyUnnoticed(tx *Transaction) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.apply(tx, true)
}

// Applied returns how many transactions have been applied with Apply.
func (f *Fake) Applied() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied
}

// Drift implements [Interface].
func (f *Fake) Drift() <-chan struct{} { return f.drift }

// Drifted implements [Interface].
func (f *Fake) Drifted(key TableKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.drifted[key]
}

// Close implements [Interface]. Tables stay.
func (f *Fake) Close() error { return nil }

// ReadTable implements [Interface]. Elements are sorted by key.
func (f *Fake) ReadTable(ctx context.Context, key TableKey, elements func(*TableSet) bool) (*Table, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	delete(f.drifted, key)
	t := f.tables[key]
	if t == nil {
		return nil, nil
	}
	table := &Table{Key: key, Comment: t.comment, Chains: map[string]*TableChain{}, Sets: map[string]*TableSet{}}
	for _, c := range t.chains {
		table.Chains[c.Name] = &TableChain{Chain: c.Chain, Rules: RuleIDs(c.rules, key.Family)}
	}
	for _, s := range t.sets {
		set := &TableSet{Name: s.Name, Comment: s.Comment, Size: s.Size, Dynamic: s.Dynamic,
			definition: definitionOf(&s.Set, key.Family)}
		if elements == nil || elements(set) {
			for _, k := range slices.Sorted(maps.Keys(s.elements)) {
				set.Elements = append(set.Elements, s.elements[k])
			}
		}
		table.Sets[s.Name] = set
	}
	return table, nil
}

// apply performs all operations, and undoes them if one fails or keep is false.
func (f *Fake) apply(tx *Transaction, keep bool) error {
	a := fakeApply{fake: f, key: tx.Table}
	err := a.all(tx)
	if err != nil || !keep {
		for _, undo := range slices.Backward(a.undo) {
			undo()
		}
	}
	return err
}

// fakeApply is one transaction in progress.
type fakeApply struct {
	fake     *Fake
	key      TableKey
	undo     []func()
	validate bool
}

func (a *fakeApply) all(tx *Transaction) error {
	for i := range tx.ops {
		o := &tx.ops[i]
		if err := a.op(o); err != nil {
			return &OpError{Table: a.key, Op: o.String(), Err: err}
		}
	}
	if t := a.fake.tables[a.key]; t != nil && a.validate {
		if err := t.validate(); err != nil {
			return &OpError{Table: a.key, Op: "commit", Err: err}
		}
	}
	return nil
}

func (a *fakeApply) op(o *op) error {
	t := a.fake.tables[a.key]
	if o.verb == addTable {
		return a.addTable(t, o)
	}
	if t == nil {
		return fmt.Errorf("no such table: %w", syscall.ENOENT)
	}
	switch o.verb {
	case deleteTable:
		delete(a.fake.tables, a.key)
		a.undo = append(a.undo, func() { a.fake.tables[a.key] = t })
	case addChain:
		return a.addChain(t, o.chain)
	case flushChain:
		return a.flushChain(t, o.name)
	case deleteChain:
		return a.deleteChain(t, o.name)
	case addRule:
		return a.addRule(t, o.name, o.rule)
	case addSet:
		return a.addSet(t, o.set)
	case deleteSet:
		return a.deleteSet(t, o.name)
	case addElements:
		return a.addElements(t, o)
	case deleteElements:
		return a.deleteElements(t, o)
	}
	return nil
}

func (a *fakeApply) addTable(t *fakeTable, o *op) error {
	if err := checkName(a.key.Name, o.comment); err != nil {
		return err
	}
	if t == nil {
		a.fake.tables[a.key] = &fakeTable{comment: o.comment}
		a.undo = append(a.undo, func() { delete(a.fake.tables, a.key) })
	}
	return nil
}

func (a *fakeApply) addChain(t *fakeTable, c *Chain) error {
	if err := checkName(c.Name, c.Comment); err != nil {
		return err
	}
	if t.chain(c.Name) != nil {
		return syscall.EEXIST
	}
	before := t.chains
	t.chains = append(slices.Clip(before), &fakeChain{Chain: *c})
	a.undo = append(a.undo, func() { t.chains = before })
	return nil
}

func (a *fakeApply) flushChain(t *fakeTable, name string) error {
	c := t.chain(name)
	if c == nil {
		return syscall.ENOENT
	}
	before := c.rules
	for i := range before {
		t.refer(&before[i], -1)
	}
	c.rules = nil
	a.undo = append(a.undo, func() {
		c.rules = before
		for i := range before {
			t.refer(&before[i], 1)
		}
	})
	return nil
}

func (a *fakeApply) deleteChain(t *fakeTable, name string) error {
	c := t.chain(name)
	switch {
	case c == nil:
		return syscall.ENOENT
	case len(c.rules) > 0:
		return fmt.Errorf("the chain has %d rules: %w", len(c.rules), syscall.EBUSY)
	case c.used > 0:
		return fmt.Errorf("the chain is referred to %d times: %w", c.used, syscall.EBUSY)
	}
	before := t.chains
	t.chains = slices.DeleteFunc(slices.Clone(before), func(x *fakeChain) bool { return x == c })
	a.undo = append(a.undo, func() { t.chains = before })
	return nil
}

func (a *fakeApply) addRule(t *fakeTable, chain string, r *Rule) error {
	c := t.chain(chain)
	if c == nil {
		return fmt.Errorf("no such chain: %w", syscall.ENOENT)
	}
	if err := t.checkRule(r); err != nil {
		return err
	}
	before := c.rules
	c.rules = append(slices.Clip(before), *r)
	t.refer(r, 1)
	a.validate = true
	a.undo = append(a.undo, func() { t.refer(r, -1); c.rules = before })
	return nil
}

func (a *fakeApply) addSet(t *fakeTable, s *Set) error {
	if err := checkName(s.Name, s.Comment); err != nil {
		return err
	}
	if t.set(s.Name) != nil {
		return syscall.EEXIST
	}
	if len(s.Key) == 0 || s.Interval && len(s.Key) < 2 || s.Verdicts && s.Value != nil || s.Dynamic && s.Size != 0 {
		return syscall.EINVAL
	}
	before := t.sets
	t.sets = append(slices.Clip(before), &fakeSet{Set: *s, elements: map[string]Element{}})
	a.undo = append(a.undo, func() { t.sets = before })
	return nil
}

func (a *fakeApply) deleteSet(t *fakeTable, name string) error {
	s := t.set(name)
	switch {
	case s == nil:
		return syscall.ENOENT
	case s.used > 0:
		return fmt.Errorf("the set is referred to %d times: %w", s.used, syscall.EBUSY)
	}
	before := t.sets
	refer := func(by int) {
		if s.Verdicts {
			for _, e := range s.elements {
				t.chain(e.Value).used += by
			}
		}
	}
	t.sets = slices.DeleteFunc(slices.Clone(before), func(x *fakeSet) bool { return x == s })
	refer(-1)
	a.undo = append(a.undo, func() { refer(1); t.sets = before })
	return nil
}
