package dataplane

import (
	"errors"
	"fmt"
	"maps"
	"slices"
)

// hooks is a set of built-in chains.
type hooks uint8

const (
	atPrerouting hooks = 1 << iota
	atInput
	atForward
	atOutput
	atPostrouting
	anywhere hooks = 0xff
)

func builtinHook(name string) hooks {
	switch name {
	case "PREROUTING":
		return atPrerouting
	case "INPUT":
		return atInput
	case "FORWARD":
		return atForward
	case "OUTPUT":
		return atOutput
	case "POSTROUTING":
		return atPostrouting
	}
	return 0
}

type fakeTable struct {
	name    Table
	builtin []string
	chains  map[string]*fakeChain
	// callers are the chains with jumps to a chain, and how many they have.
	callers map[string]map[string]int
}

type fakeChain struct {
	policy string // of built-in ones
	rules  []fakeRule
}

type fakeRule struct {
	text  string
	jump  string // the chain that it jumps or goes to, if any
	hooks hooks  // where it may be used
}

func newFakeTable(name Table) *fakeTable {
	t := &fakeTable{name: name, chains: map[string]*fakeChain{}, callers: map[string]map[string]int{}}
	switch name {
	case Filter:
		t.builtin = []string{"INPUT", "FORWARD", "OUTPUT"}
	case NAT:
		t.builtin = []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}
	case Mangle:
		t.builtin = []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	}
	for _, c := range t.builtin {
		t.chains[c] = &fakeChain{policy: "ACCEPT"}
	}
	return t
}

// setRules replaces the rules of a chain that is there, and keeps count of jumps.
func (t *fakeTable) setRules(chain string, rules []fakeRule) {
	c := t.chains[chain]
	t.count(chain, c.rules, -1)
	c.rules = rules
	t.count(chain, rules, 1)
}

func (t *fakeTable) count(caller string, rules []fakeRule, by int) {
	for i := range rules {
		to := rules[i].jump
		if to == "" {
			continue
		}
		m := t.callers[to]
		if m == nil {
			m = map[string]int{}
			t.callers[to] = m
		}
		if m[caller] += by; m[caller] == 0 {
			delete(m, caller)
		}
	}
}

// fakeApply is a restore in progress.
type fakeApply struct {
	fake     *Fake
	failRule func(Table, string, string) error
	table    *fakeTable
	// saved has what chains of the table were, nil if they were not there. Slices of rules are never changed in place.
	saved map[string]*fakeChain
	rules []fakeRule // of the chain that is being filled
	chain string
}

func (a *fakeApply) line(l *line) error {
	if a.chain != "" && (l.verb != "-A" || l.chain != a.chain) {
		a.table.setRules(a.chain, a.rules)
		a.chain, a.rules = "", nil
	}
	switch l.verb {
	case "*":
		if a.table = a.fake.table(Table(l.chain)); a.table == nil {
			return ErrNoTable
		}
		a.saved = map[string]*fakeChain{}
	case ":":
		return a.declare(l.chain)
	case "-A":
		return a.add(l)
	case "-I":
		r, err := a.rule(l)
		if err != nil {
			return err
		}
		a.save(l.chain)
		a.table.setRules(l.chain, append([]fakeRule{r}, a.table.chains[l.chain].rules...))
	case "-D":
		return a.delete(l)
	case "-X":
		return a.remove(l.chain)
	case "COMMIT":
		if err := a.table.validate(slices.Sorted(maps.Keys(a.saved))); err != nil {
			return err
		}
		a.saved = nil
		a.fake.generation++
	}
	return nil
}

func (a *fakeApply) save(chain string) {
	if _, saved := a.saved[chain]; saved {
		return
	}
	c := a.table.chains[chain]
	if c != nil {
		c = &fakeChain{policy: c.policy, rules: c.rules}
	}
	a.saved[chain] = c
}

// undo reverts the changes to the table that is not committed.
func (a *fakeApply) undo() {
	for name, before := range a.saved {
		if a.table.chains[name] == nil {
			a.table.chains[name] = &fakeChain{}
		}
		if before == nil {
			a.table.setRules(name, nil)
			delete(a.table.chains, name)
			continue
		}
		a.table.setRules(name, before.rules)
		a.table.chains[name].policy = before.policy
	}
}

func (a *fakeApply) declare(chain string) error {
	if slices.Contains(a.table.builtin, chain) {
		return fmt.Errorf("%s is a built-in chain", chain)
	}
	a.save(chain)
	if a.table.chains[chain] == nil {
		a.table.chains[chain] = &fakeChain{}
	}
	a.table.setRules(chain, nil)
	return nil
}

func (a *fakeApply) add(l *line) error {
	r, err := a.rule(l)
	if err != nil {
		return err
	}
	if a.chain == "" {
		a.save(l.chain)
		a.chain, a.rules = l.chain, slices.Clone(a.table.chains[l.chain].rules)
	}
	a.rules = append(a.rules, r)
	return nil
}

// rule checks a rule that is to be added.
func (a *fakeApply) rule(l *line) (fakeRule, error) {
	if a.table.chains[l.chain] == nil {
		return fakeRule{}, errors.New("no such chain")
	}
	if a.failRule != nil {
		if err := a.failRule(a.table.name, l.chain, l.rule); err != nil {
			return fakeRule{}, err
		}
	}
	r, err := parseRule(a.fake.features, a.table.name, l.chain, l.rule)
	if err != nil {
		return r, err
	}
	if r.jump != "" && (a.table.chains[r.jump] == nil || slices.Contains(a.table.builtin, r.jump)) {
		return r, fmt.Errorf("no chain to jump to: %s", r.jump)
	}
	return r, nil
}

func (a *fakeApply) delete(l *line) error {
	if _, err := parseRule(a.fake.features, a.table.name, l.chain, l.rule); err != nil {
		return err
	}
	c := a.table.chains[l.chain]
	if c == nil {
		return nil
	}
	i := slices.IndexFunc(c.rules, func(r fakeRule) bool { return r.text == l.rule })
	if i >= 0 {
		a.save(l.chain)
		a.table.setRules(l.chain, slices.Delete(slices.Clone(c.rules), i, i+1))
	}
	return nil
}

func (a *fakeApply) remove(chain string) error {
	switch c := a.table.chains[chain]; {
	case c == nil:
		return errors.New("no such chain")
	case len(c.rules) > 0:
		return errors.New("the chain is not empty")
	}
	for caller := range a.table.callers[chain] {
		return fmt.Errorf("chain %s jumps to it", caller)
	}
	delete(a.table.callers, chain)
	delete(a.table.chains, chain)
	return nil
}

// validate checks the chains that were changed and those that they jump to, as the kernel does at the end: for loops,
// and for rules that packets of some hook must not reach.
func (t *fakeTable) validate(changed []string) error {
	v := validation{table: t, reached: map[string]hooks{}, done: map[string]bool{}}
	for _, c := range changed {
		if err := v.down(c); err != nil {
			return err
		}
	}
	return nil
}

type validation struct {
	table   *fakeTable
	reached map[string]hooks // from which hooks a chain is reached
	done    map[string]bool  // false: on the way
}

func (v *validation) down(chain string) error {
	if _, seen := v.done[chain]; seen {
		return nil
	}
	c := v.table.chains[chain]
	if c == nil {
		return nil
	}
	v.done[chain] = false
	// Check for loops first: the later checks assume that there are none.
	for i := range c.rules {
		r := &c.rules[i]
		if done, seen := v.done[r.jump]; r.jump != "" && seen && !done {
			return &ruleError{chain, r.text, errors.New("a loop")}
		}
		if r.jump != "" {
			if err := v.down(r.jump); err != nil {
				return err
			}
		}
	}
	v.done[chain] = true
	from := v.up(chain)
	for i := range c.rules {
		if r := &c.rules[i]; from&^r.hooks != 0 {
			return &ruleError{chain, r.text, errors.New("not to be used where packets of this hook come by")}
		}
	}
	return nil
}

func (v *validation) up(chain string) hooks {
	if v.table.isBuiltin(chain) {
		return builtinHook(chain)
	}
	if h, known := v.reached[chain]; known {
		return h
	}
	v.reached[chain] = 0 // ends a loop
	var from hooks
	for caller := range v.table.callers[chain] {
		from |= v.up(caller)
	}
	v.reached[chain] = from
	return from
}

func (t *fakeTable) isBuiltin(chain string) bool { return slices.Contains(t.builtin, chain) }
