package dataplane

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Transaction is a list of operations on one table that are applied together, in order. An object has to be added
// before others refer to it, and can be deleted only when none does any more.
type Transaction struct {
	// Table is the table that all operations are on.
	Table TableKey
	// Unconditional: Apply does not fail with ErrStale, whatever others have changed in the table.
	Unconditional bool
	ops           []op
}

// NewTransaction returns an empty transaction.
func NewTransaction(table TableKey) *Transaction { return &Transaction{Table: table} }

// verb is the name of an operation in errors, where the name of its object follows.
type verb string

const (
	addTable       verb = "add table"
	deleteTable    verb = "delete table"
	addChain       verb = "add chain"
	flushChain     verb = "flush chain"
	deleteChain    verb = "delete chain"
	addRule        verb = "add rule to chain"
	addSet         verb = "add set"
	deleteSet      verb = "delete set"
	addElements    verb = "add elements to"
	deleteElements verb = "delete elements from"
)

type op struct {
	verb     verb
	name     string // of the chain or set
	comment  string // of the table
	chain    *Chain
	rule     *Rule
	set      *Set
	elements []Element
	timeout  time.Duration // of elements that are added to a dynamic set
	joined   bool          // with the operation before: Split must not separate the two
}

// IsEmpty reports whether there is nothing to do.
func (t *Transaction) IsEmpty() bool { return len(t.ops) == 0 }

// Elements returns how many elements it adds and deletes.
func (t *Transaction) Elements() (n int) {
	for i := range t.ops {
		n += len(t.ops[i].elements)
	}
	return n
}

// Grow makes room for a number of operations that are about to be added.
func (t *Transaction) Grow(n int) { t.ops = slices.Grow(t.ops, n) }

func (t *Transaction) add(o op) { t.ops = append(t.ops, o) }

// AddTable adds the table. It may exist already; its comment then stays as it is.
func (t *Transaction) AddTable(comment string) { t.add(op{verb: addTable, comment: comment}) }

// DeleteTable deletes the table with everything in it. It must exist.
func (t *Transaction) DeleteTable() { t.add(op{verb: deleteTable}) }

// AddChain adds a chain. It must not exist yet.
func (t *Transaction) AddChain(c *Chain) { t.add(op{verb: addChain, name: c.Name, chain: c}) }

// FlushChain deletes all rules of a chain.
func (t *Transaction) FlushChain(name string) { t.add(op{verb: flushChain, name: name}) }

// DeleteChain deletes a chain. It must have no rules, and nothing may refer to it.
func (t *Transaction) DeleteChain(name string) { t.add(op{verb: deleteChain, name: name}) }

// AddRule adds a rule at the end of a chain.
func (t *Transaction) AddRule(chain string, r *Rule) { t.add(op{verb: addRule, name: chain, rule: r}) }

// AddSet adds a set or map. It must not exist yet.
func (t *Transaction) AddSet(s *Set) { t.add(op{verb: addSet, name: s.Name, set: s}) }

// DeleteSet deletes a set with its elements. No rule may refer to it.
func (t *Transaction) DeleteSet(name string) { t.add(op{verb: deleteSet, name: name}) }

// AddElements adds elements to a set. They must not exist yet.
func (t *Transaction) AddElements(s *Set, elements ...Element) { t.elements(addElements, s, elements) }

// AddDynamic adds elements to a dynamic set, as rules do: they time out. They must not exist yet.
func (t *Transaction) AddDynamic(s *Set, timeout time.Duration, elements ...Element) {
	if len(elements) > 0 {
		t.add(op{verb: addElements, name: s.Name, set: s, elements: elements, timeout: timeout})
	}
}

// DeleteElements deletes elements of a set by their keys. They must exist.
func (t *Transaction) DeleteElements(s *Set, elements ...Element) {
	t.elements(deleteElements, s, elements)
}

// ReplaceElements replaces the values of existing elements.
func (t *Transaction) ReplaceElements(s *Set, elements ...Element) {
	for part := range slices.Chunk(elements, 500) {
		t.add(op{verb: deleteElements, name: s.Name, set: s, elements: part})
		t.add(op{verb: addElements, name: s.Name, set: s, elements: part, joined: true})
	}
}

// Split divides the transaction, if it is too big for a socket, into two that have the same effect one after the other.
// It returns false if that is not possible.
func (t *Transaction) Split() (first, second *Transaction, ok bool) {
	weight := func(o *op) int { return 4 + len(o.elements) }
	total := 0
	for i := range t.ops {
		total += weight(&t.ops[i])
	}
	sum, cut := 0, 0
	for i := range t.ops {
		if i > 0 && !t.ops[i].joined {
			cut = i
		}
		if sum += weight(&t.ops[i]); 2*sum >= total && cut > 0 {
			break
		}
	}
	one, two := *t, *t
	switch {
	case cut > 0:
		one.ops, two.ops = slices.Clip(t.ops[:cut]), t.ops[cut:]
	case len(t.ops) == 1 && len(t.ops[0].elements) > 1:
		a, b := t.ops[0], t.ops[0]
		half := len(a.elements) / 2
		a.elements, b.elements = slices.Clip(a.elements[:half]), b.elements[half:]
		one.ops, two.ops = []op{a}, []op{b}
	default:
		return nil, nil, false
	}
	return &one, &two, true
}

func (t *Transaction) elements(v verb, s *Set, elements []Element) {
	if len(elements) == 0 {
		return
	}
	if n := len(t.ops); n > 0 && t.ops[n-1].verb == v && t.ops[n-1].name == s.Name && !t.ops[n-1].joined &&
		t.ops[n-1].timeout == 0 {
		t.ops[n-1].elements = append(t.ops[n-1].elements, elements...)
		return
	}
	t.add(op{verb: v, name: s.Name, set: s, elements: slices.Clip(elements)})
}

// String returns the operation in short, for errors.
func (o *op) String() string { return strings.TrimSpace(string(o.verb) + " " + o.name) }

// failed returns the error of the operation with an index, or, if that is negative, of the commit.
func (t *Transaction) failed(i int, err error, hint string) *OpError {
	e := &OpError{Table: t.Table, Op: "commit", Err: err, Hint: hint}
	if i >= 0 {
		o := &t.ops[i]
		if e.Op = o.String(); o.verb == addRule {
			e.Rule = string(o.rule.append(nil, t.Table.Family))
		}
	}
	return e
}

// Text returns the transaction as commands for nft, a line for each change. (nft cannot execute all of it: attributes
// of base chains are left out.)
func (t *Transaction) Text() string {
	var b strings.Builder
	for i := range t.ops {
		t.ops[i].command(&b, t.Table)
	}
	return b.String()
}

func (o *op) command(b *strings.Builder, table TableKey) {
	verb, kind, _ := strings.Cut(string(o.verb), " ")
	switch o.verb {
	case addTable, deleteTable:
		fmt.Fprintf(b, "%s table %v\n", verb, table)
	case addRule:
		fmt.Fprintf(b, "add rule %v %s %s\n", table, o.name, o.rule.append(nil, table.Family))
	case addElements, deleteElements:
		for _, e := range o.elements {
			if o.verb == deleteElements {
				e.Comment = ""
			}
			text := o.set.elementText(table.Family, e)
			if o.timeout > 0 {
				text += string(appendDuration([]byte(" timeout "), o.timeout))
			}
			fmt.Fprintf(b, "%s element %v %s { %s }\n", verb, table, o.name, text)
		}
	default:
		fmt.Fprintf(b, "%s %s %v %s\n", verb, kind, table, o.name)
	}
}
