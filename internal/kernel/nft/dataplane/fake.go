package dataplane

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Fake is a model of the kernel for tests that run anywhere. It checks what the kernel checks (that referenced objects
// exist, that no object in use is deleted, that keys have the right size and elements are new, that no chain jumps back
// to itself) and more (that nft can print comments, that DNAT is reached only from hooks that allow it). Its errors are
// the kernel's: syscall.ENOENT, EEXIST, EBUSY, EINVAL, ELOOP, in an [OpError].
//
// It evaluates no packets, so dynamic sets have only what transactions add, for which no time passes. It has no size
// limits.
type Fake struct {
	mu      sync.Mutex
	tables  map[TableKey]*fakeTable
	drifted map[TableKey]bool
	drift   chan struct{}
	applied int
	listed  int

	// FailApply, if set, is called before each Apply. If it returns an error, Apply returns that and applies nothing. See
	// also Fail.
	FailApply func(*Transaction) error
	// LeftOut, if set, says which elements ReadDynamic leaves out, by their places in the order of their keys. Then it
	// is not complete.
	LeftOut func(i int) bool
	// Reading is what Yield returns. Set it before a backend is made.
	Reading time.Duration
	// Host are the addresses of the node. Set them before a backend is made.
	Host []netip.Addr
}

// HostAddresses returns the addresses of the node.
func (f *Fake) HostAddresses() []netip.Addr { return f.Host }

// Yield implements [Interface].
func (f *Fake) Yield() time.Duration { return f.Reading }

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake without tables.
func NewFake() *Fake {
	return &Fake{tables: map[TableKey]*fakeTable{}, drifted: map[TableKey]bool{}, drift: make(chan struct{}, 1)}
}

type fakeTable struct {
	key         TableKey
	comment     string
	chains      []*fakeChain // in the order in which they were added, like sets
	sets        []*fakeSet
	chainByName map[string]*fakeChain
	setByName   map[string]*fakeSet
}

func newFakeTable(key TableKey, comment string) *fakeTable {
	return &fakeTable{key: key, comment: comment, chainByName: map[string]*fakeChain{}, setByName: map[string]*fakeSet{}}
}

type fakeChain struct {
	Chain
	rules []Rule
	uses  int // statements and elements that point at it
}

type fakeSet struct {
	Set
	elements map[string]Element
	timeouts map[string]time.Duration // of those that have one
	uses     int                      // statements that look it up
}

// clone returns a copy, nil of no table.
func (t *fakeTable) clone() *fakeTable {
	if t == nil {
		return nil
	}
	c := newFakeTable(t.key, t.comment)
	for _, ch := range t.chains {
		c.add(&fakeChain{ch.Chain, slices.Clip(ch.rules), ch.uses})
	}
	for _, s := range t.sets {
		c.add(&fakeSet{s.Set, maps.Clone(s.elements), maps.Clone(s.timeouts), s.uses})
	}
	return c
}

// add adds a *fakeChain or *fakeSet.
func (t *fakeTable) add(object any) {
	switch o := object.(type) {
	case *fakeChain:
		t.chains, t.chainByName[o.Name] = append(t.chains, o), o
	case *fakeSet:
		t.sets, t.setByName[o.Name] = append(t.sets, o), o
	}
}

func (t *fakeTable) chain(name string) *fakeChain { return t.chainByName[name] }

func (t *fakeTable) set(name string) *fakeSet { return t.setByName[name] }

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

// Fail makes every Apply fail with err, until Fail(nil). It replaces FailApply.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.FailApply = func(*Transaction) error { return err }
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

// Listed returns how many elements of dynamic sets have been read with ReadDynamic.
func (f *Fake) Listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listed
}

// ReadDynamic implements [Interface]. Elements are sorted by key.
func (f *Fake) ReadDynamic(ctx context.Context, key TableKey, s *Set, each func(Element, time.Duration)) (
	complete bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	t := f.tables[key]
	if t == nil || t.set(s.Name) == nil {
		return false, fmt.Errorf("no such set: %w", syscall.ENOENT)
	}
	have := t.set(s.Name)
	for i, k := range slices.Sorted(maps.Keys(have.elements)) {
		if f.LeftOut != nil && f.LeftOut(i) {
			continue
		}
		f.listed++
		each(have.elements[k], have.timeouts[k])
	}
	return f.LeftOut == nil, nil
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

// apply performs all operations on a copy of the table, which replaces the table if none fails and keep is set.
func (f *Fake) apply(tx *Transaction, keep bool) error {
	t := f.tables[tx.Table].clone()
	for i := range tx.ops {
		var err error
		switch o := &tx.ops[i]; {
		case o.verb == addTable:
			if err = checkName(tx.Table.Name, o.comment); t == nil {
				t = newFakeTable(tx.Table, o.comment)
			}
		case t == nil:
			err = fmt.Errorf("no such table: %w", syscall.ENOENT)
		case o.verb == deleteTable:
			t = nil
		default:
			err = t.do(o)
		}
		if err != nil {
			return tx.failed(i, err, "")
		}
	}
	if t != nil {
		if err := t.validate(); err != nil {
			return tx.failed(-1, err, "")
		}
	}
	if keep {
		f.tables[tx.Table] = t
	}
	return nil
}

func (t *fakeTable) do(o *op) error {
	switch o.verb {
	case addChain:
		return t.addChain(o.chain)
	case addRule:
		return t.addRule(o.name, o.rule)
	case addSet:
		return t.addSet(o.set)
	case addElements, deleteElements:
		return t.changeElements(o)
	case deleteSet:
		return t.deleteSet(o.name)
	}
	c := t.chain(o.name)
	if c == nil {
		return syscall.ENOENT
	}
	if o.verb == flushChain {
		for i := range c.rules {
			t.countUses(&c.rules[i], -1)
		}
		c.rules = nil
		return nil
	}
	if n := len(c.rules); n > 0 {
		return fmt.Errorf("the chain has %d rules: %w", n, syscall.EBUSY)
	}
	if c.uses > 0 {
		return fmt.Errorf("the chain is referred to %d times: %w", c.uses, syscall.EBUSY)
	}
	delete(t.chainByName, c.Name)
	t.chains = slices.DeleteFunc(t.chains, func(x *fakeChain) bool { return x == c })
	return nil
}

// countUses counts what the statements of a rule use, or no longer do.
func (t *fakeTable) countUses(r *Rule, n int) {
	for _, s := range r.Statements {
		u := useOf(s)
		if u.chain != "" {
			t.chain(u.chain).uses += n
		}
		if u.set != nil {
			t.set(u.set.Name).uses += n
		}
	}
}

// countElement counts the chain that an element points at.
func (t *fakeTable) countElement(s *fakeSet, e Element, n int) {
	if s.Verdicts {
		t.chain(e.Value).uses += n
	}
}

func (t *fakeTable) addChain(c *Chain) error {
	if err := checkName(c.Name, c.Comment); err != nil {
		return err
	}
	if t.chain(c.Name) != nil {
		return syscall.EEXIST
	}
	t.add(&fakeChain{Chain: *c})
	return nil
}

func (t *fakeTable) addRule(chain string, r *Rule) error {
	c := t.chain(chain)
	if c == nil {
		return fmt.Errorf("no such chain: %w", syscall.ENOENT)
	}
	if err := t.checkRule(r); err != nil {
		return err
	}
	c.rules = append(c.rules, *r)
	t.countUses(r, 1)
	return nil
}

func (t *fakeTable) addSet(s *Set) error {
	if err := checkName(s.Name, s.Comment); err != nil {
		return err
	}
	if t.set(s.Name) != nil {
		return syscall.EEXIST
	}
	isMap := s.Verdicts || s.Value != nil
	if len(s.Key) == 0 || s.Interval && (len(s.Key) != 1 || isMap) || s.Verdicts && s.Value != nil ||
		s.Dynamic && s.Size != 0 {
		return syscall.EINVAL
	}
	t.add(&fakeSet{Set: *s, elements: map[string]Element{}, timeouts: map[string]time.Duration{}})
	return nil
}

func (t *fakeTable) deleteSet(name string) error {
	s := t.set(name)
	if s == nil {
		return syscall.ENOENT
	}
	if s.uses > 0 {
		return fmt.Errorf("the set is referred to %d times: %w", s.uses, syscall.EBUSY)
	}
	for _, e := range s.elements {
		t.countElement(s, e, -1)
	}
	delete(t.setByName, name)
	t.sets = slices.DeleteFunc(t.sets, func(x *fakeSet) bool { return x == s })
	return nil
}
