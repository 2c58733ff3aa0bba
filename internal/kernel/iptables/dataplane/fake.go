package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Fake keeps the text of chains in memory, for tests that run anywhere. It has the tables filter, nat and mangle,
// changes each of them atomically, and rejects what the programs reject without parsing rules: jumps to missing or
// built-in chains, the removal of chains in use, and names that are too long.
//
// It accepts any text as a rule, and evaluates no packets. History has everything that was applied, so that it can be
// applied to a real iptables too.
type Fake struct {
	mu               sync.Mutex
	features         Features
	tables           map[Table]map[string][]string // rules by chain
	generation       uint64
	batches, history []*Batch
	counters         map[string]uint64 // packets

	// FailRestore, if set, is called before each Restore. If it returns an error, Restore returns it and changes nothing.
	FailRestore func(*Batch) error
	// FailRule, if set, is called for each rule of a Restore; its error fails the rule's table.
	FailRule func(table Table, chain, rule string) error
	// FailCounter, if set, is called by EnsureCounter. If it returns an error, so does EnsureCounter.
	FailCounter func(name string) error
	// Reading is the result of Yield. Set it before a backend is created.
	Reading time.Duration
	// Host are the node's addresses. Set them before a backend is created.
	Host []netip.Addr
}

// HostAddresses returns the addresses of the node.
func (f *Fake) HostAddresses() []netip.Addr { return f.Host }

// Yield implements [Interface].
func (f *Fake) Yield() time.Duration { return f.Reading }

var _ Interface = (*Fake)(nil)

// NewFake returns a Fake that reports itself as iptables-nft.
func NewFake(f model.Family) *Fake {
	fake := &Fake{features: Features{Family: f, Variant: NFT}, tables: map[Table]map[string][]string{},
		counters: map[string]uint64{}}
	for _, t := range fakeTables() {
		chains := map[string][]string{}
		for _, c := range builtinChains(t) {
			chains[c] = nil
		}
		fake.tables[t] = chains
	}
	return fake
}

func fakeTables() []Table { return []Table{Mangle, NAT, Filter} }

func builtinChains(t Table) []string {
	switch t {
	case Filter:
		return []string{"INPUT", "FORWARD", "OUTPUT"}
	case NAT:
		return []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
	}
	return []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
}

// Features implements [Interface].
func (f *Fake) Features() Features { return f.features }

// Restore implements [Interface].
func (f *Fake) Restore(ctx context.Context, b *Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := ctx.Err()
	if err == nil && f.FailRestore != nil {
		err = f.FailRestore(b)
	}
	if err != nil {
		var refused *RestoreError
		if errors.As(err, &refused) {
			return err
		}
		return &RestoreError{Family: f.features.Family, Err: err}
	}
	if err := f.restore(b, f.failRule); err != nil {
		return err
	}
	if !b.IsEmpty() {
		f.batches = append(f.batches, b)
	}
	return nil
}

// Fail makes every Restore and EnsureCounter fail with err, until Fail(nil). It replaces FailRestore and FailCounter.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.FailRestore = func(*Batch) error { return err }
	f.FailCounter = func(string) error { return err }
}

// failRule refuses rules with a counter that does not exist, and what FailRule refuses.
func (f *Fake) failRule(table Table, chain, rule string) error {
	if name := counterOf(rule); name != "" {
		if _, exists := f.counters[name]; !exists {
			return fmt.Errorf("no counter %s", name)
		}
	}
	if f.FailRule == nil {
		return nil
	}
	return f.FailRule(table, chain, rule)
}

// RestoreAsSomebodyElse simulates iptables-restore --noflush of another program: no fault is injected, and Batches does
// not include it.
func (f *Fake) RestoreAsSomebodyElse(b *Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.restore(b, nil)
}

func (f *Fake) restore(b *Batch, failRule func(Table, string, string) error) error {
	if err := b.check(); err != nil {
		return &RestoreError{Family: f.features.Family, Err: err}
	}
	var table fakeTable
	for l := range b.lines() {
		var err error
		if name := b.Tables[l.table].Table; l.verb == "*" {
			table = fakeTable{maps.Clone(f.tables[name]), builtinChains(name), map[string]bool{}, map[string]line{}}
			if table.chains == nil {
				err = ErrNoTable
			}
		} else if err = table.apply(&l); err == nil && (l.verb == "-A" || l.verb == "-I") && failRule != nil {
			err = failRule(name, l.chain, l.rule)
		}
		if err == nil && l.verb == "COMMIT" {
			if l, err = table.check(b, l); err == nil {
				f.tables[b.Tables[l.table].Table] = table.chains
				f.generation++
				f.history = append(f.history, &Batch{Tables: b.Tables[l.table : l.table+1]})
			}
		}
		if err != nil {
			failed := &RestoreError{Family: f.features.Family, Err: err}
			failed.at(b, l)
			return failed
		}
	}
	return nil
}

// fakeTable is a table during a batch.
type fakeTable struct {
	chains  map[string][]string
	builtin []string
	changed map[string]bool
	removed map[string]line
}

// apply executes a line.
func (t *fakeTable) apply(l *line) error {
	if l.verb == "COMMIT" {
		return nil
	}
	rules, exists := t.chains[l.chain]
	if !exists && l.verb != ":" {
		return errors.New("no such chain")
	}
	t.changed[l.chain] = true
	switch l.verb {
	case ":":
		if slices.Contains(t.builtin, l.chain) {
			return fmt.Errorf("%s is a built-in chain", l.chain)
		}
		t.chains[l.chain] = nil
	case "-A":
		t.chains[l.chain] = append(rules, l.rule) // not the earlier rules: the chain was declared
	case "-I":
		t.chains[l.chain] = append([]string{l.rule}, rules...)
	case "-D":
		if i := slices.Index(rules, l.rule); i >= 0 {
			t.chains[l.chain] = slices.Delete(slices.Clone(rules), i, i+1)
		}
	case "-X":
		if len(rules) > 0 {
			return errors.New("the chain is not empty")
		}
		delete(t.chains, l.chain)
		t.removed[l.chain] = *l
	}
	return nil
}

// check checks all references at the end of a table. It returns the failing line, or commit.
func (t *fakeTable) check(b *Batch, commit line) (line, error) {
	for name, rules := range t.chains {
		if !t.changed[name] && len(t.removed) == 0 {
			continue
		}
		for _, rule := range rules {
			to := Target(rule)
			if _, exists := t.chains[to]; exists && !slices.Contains(t.builtin, to) || isVerdict(to) {
				continue
			}
			if l, removed := t.removed[to]; removed {
				return l, fmt.Errorf("chain %s jumps to it", name)
			}
			return b.find(func(l line) bool {
				return l.table == commit.table && l.chain == name && l.rule == rule && l.verb != "-D"
			}), fmt.Errorf("no chain to jump to: %s", to)
		}
	}
	return commit, nil
}

// isVerdict reports whether a result of Target is not a chain.
func isVerdict(target string) bool {
	return slices.Contains([]string{"", "ACCEPT", "DROP", "RETURN", "MASQUERADE"}, target)
}

// Read implements [Interface].
func (f *Fake) Read(ctx context.Context, table Table, prefix string) (*State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if f.tables[table] == nil {
		return nil, fmt.Errorf("%v: table %s: %w", f.features.Family, table, ErrNoTable)
	}
	return parseSave(strings.NewReader(f.dump(table)), table, prefix)
}

// Generation implements [Interface]. It counts every change of every table.
func (f *Fake) Generation(ctx context.Context) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.generation, ctx.Err()
}

// EnsureCounter implements [Interface].
func (f *Fake) EnsureCounter(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.FailCounter != nil {
		if err := f.FailCounter(name); err != nil {
			return err
		}
	}
	f.counters[name] += 0
	return nil
}

// CountedPackets implements [Interface]. It returns what Count has added.
func (f *Fake) CountedPackets(name string) (uint64, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, exists := f.counters[name]
	if !exists {
		return 0, fmt.Errorf("counter %s: %w", name, fs.ErrNotExist)
	}
	return n, nil
}

// RemoveCounter implements [Interface]. A counter that rules use stays.
func (f *Fake) RemoveCounter(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, table := range fakeTables() {
		for _, rules := range f.tables[table] {
			if slices.ContainsFunc(rules, func(rule string) bool { return counterOf(rule) == name }) {
				return nil
			}
		}
	}
	delete(f.counters, name)
	return nil
}

// counterOf returns the counter with which a rule counts, or "".
func counterOf(rule string) string {
	_, rest, _ := strings.Cut(rule, countWith)
	name, _, _ := strings.Cut(rest, " ")
	return name
}

// Count adds to a counter what packets would.
func (f *Fake) Count(name string, packets uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counters[name] += packets
}

// Batches returns the batches applied since the start or ResetBatches.
func (f *Fake) Batches() []*Batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clip(f.batches)
}

// ResetBatches forgets the batches.
func (f *Fake) ResetBatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = nil
}

// History returns everything that was applied since the start, table by table: batches, other programs' batches, and
// loaded dumps.
func (f *Fake) History() []*Batch {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clip(f.history)
}

// Close implements [Interface]. The rules stay.
func (f *Fake) Close() error { return nil }

// Dump returns all rules in the format of iptables-save, without time stamps. It omits tables without rules and
// user-defined chains.
func (f *Fake) Dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, table := range fakeTables() {
		chains := f.tables[table]
		if len(chains) > len(builtinChains(table)) || slices.ContainsFunc(builtinChains(table),
			func(c string) bool { return len(chains[c]) > 0 }) {
			b.WriteString(f.dump(table))
		}
	}
	return b.String()
}

func (f *Fake) dump(table Table) string {
	var b strings.Builder
	builtin, chains := builtinChains(table), f.tables[table]
	own := slices.DeleteFunc(slices.Sorted(maps.Keys(chains)), func(c string) bool { return isBuiltin([]byte(c)) })
	fmt.Fprintf(&b, "*%s\n", table)
	for _, c := range builtin {
		fmt.Fprintf(&b, ":%s ACCEPT [0:0]\n", c)
	}
	for _, c := range own {
		fmt.Fprintf(&b, ":%s - [0:0]\n", c)
	}
	for _, c := range slices.Concat(builtin, own) {
		for _, rule := range chains[c] {
			fmt.Fprintf(&b, "%s\n", strings.TrimSuffix("-A "+c+" "+rule, " "))
		}
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// Load replaces the tables in a dump, like iptables-restore without --noflush by another program, but leaves policies
// alone. So "*nat\nCOMMIT\n" empties a table.
func (f *Fake) Load(dump string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := &Batch{}
	for l := range strings.Lines(dump) {
		name, isTable := strings.CutPrefix(strings.TrimSpace(l), "*")
		if !isTable {
			continue
		}
		t := TableBatch{Table: Table(name)}
		state, err := parseSave(strings.NewReader(dump), t.Table, "")
		if f.tables[t.Table] == nil {
			err = ErrNoTable
		}
		if err != nil {
			return fmt.Errorf("%v: %w", f.features.Family, err)
		}
		t.Insert = state.Jumps
		for _, c := range slices.Sorted(maps.Keys(state.Chains)) {
			t.Chains = append(t.Chains, Chain{Name: c, Rules: state.Chains[c]})
		}
		for c, rules := range f.tables[t.Table] {
			if !isBuiltin([]byte(c)) {
				if _, stays := state.Chains[c]; !stays {
					t.Remove = append(t.Remove, c)
				}
				continue
			}
			for _, rule := range rules {
				t.Delete = append(t.Delete, BuiltinRule{c, rule})
			}
		}
		all.Tables = append(all.Tables, t)
	}
	return f.restore(all, nil)
}
