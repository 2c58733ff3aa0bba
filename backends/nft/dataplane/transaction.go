package dataplane

import (
	"fmt"
	"slices"
	"strings"
)

// Transaction is a list of operations on one table that are put in force together. They are in order: what is referred to
// is added before, and no longer referred to when it is deleted.
type Transaction struct {
	Table TableKey
	// Unconditional: whatever others have made of the table, Apply does not fail with ErrStale.
	Unconditional bool
	ops           []op
}

// NewTransaction returns an empty transaction.
func NewTransaction(table TableKey) *Transaction { return &Transaction{Table: table} }

type verb uint8

const (
	addTable verb = iota
	deleteTable
	addChain
	flushChain
	deleteChain
	addRule
	addSet
	deleteSet
	addElements
	deleteElements
)

type op struct {
	verb     verb
	name     string // of the chain or set
	comment  string // of the table
	chain    *Chain
	rule     *Rule
	set      *Set
	elements []Element
	joined   bool // with the operation before: there must be nothing between the two
}

// IsEmpty tells whether there is nothing to do.
func (t *Transaction) IsEmpty() bool { return len(t.ops) == 0 }

// Elements returns how many elements it adds and deletes.
func (t *Transaction) Elements() (n int) {
	for i := range t.ops {
		n += len(t.ops[i].elements)
	}
	return n
}

// AddTable adds the table. It may be there already; a comment then stays what it is.
func (t *Transaction) AddTable(comment string) {
	t.ops = append(t.ops, op{verb: addTable, comment: comment})
}

// DeleteTable deletes the table with all that is in it. It must be there.
func (t *Transaction) DeleteTable() { t.ops = append(t.ops, op{verb: deleteTable}) }

// AddChain adds a chain. It must not be there.
func (t *Transaction) AddChain(c *Chain) {
	t.ops = append(t.ops, op{verb: addChain, name: c.Name, chain: c})
}

// FlushChain deletes all rules of a chain.
func (t *Transaction) FlushChain(name string) {
	t.ops = append(t.ops, op{verb: flushChain, name: name})
}

// DeleteChain deletes a chain. It must have no rules, and nothing may refer to it.
func (t *Transaction) DeleteChain(name string) {
	t.ops = append(t.ops, op{verb: deleteChain, name: name})
}

// AddRule adds a rule at the end of a chain.
func (t *Transaction) AddRule(chain string, r *Rule) {
	t.ops = append(t.ops, op{verb: addRule, name: chain, rule: r})
}

// AddSet adds a set or map. It must not be there.
func (t *Transaction) AddSet(s *Set) { t.ops = append(t.ops, op{verb: addSet, name: s.Name, set: s}) }

// DeleteSet deletes a set with its elements. No rule may refer to it.
func (t *Transaction) DeleteSet(name string) {
	t.ops = append(t.ops, op{verb: deleteSet, name: name})
}

// AddElements adds elements to a set. They must not be there.
func (t *Transaction) AddElements(s *Set, elements ...Element) {
	t.elements(addElements, s, elements)
}

// DeleteElements deletes elements of a set by their keys. They must be there.
func (t *Transaction) DeleteElements(s *Set, elements ...Element) {
	t.elements(deleteElements, s, elements)
}

// ReplaceElements gives elements that are there other values.
func (t *Transaction) ReplaceElements(s *Set, elements ...Element) {
	for part := range slices.Chunk(elements, 500) {
		t.ops = append(t.ops,
			op{verb: deleteElements, name: s.Name, set: s, elements: part},
			op{verb: addElements, name: s.Name, set: s, elements: part, joined: true})
	}
}

// Split divides the transaction into two that do the same, one after the other, for when it is too big for a socket. It
// returns false if that is not possible.
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
	first, second = NewTransaction(t.Table), NewTransaction(t.Table)
	first.Unconditional, second.Unconditional = t.Unconditional, t.Unconditional
	if n := len(t.ops); cut == 0 && n == 1 && len(t.ops[0].elements) > 1 {
		o := t.ops[0]
		half := len(o.elements) / 2
		first.elements(o.verb, o.set, o.elements[:half])
		second.elements(o.verb, o.set, o.elements[half:])
		return first, second, true
	}
	if cut == 0 {
		return nil, nil, false
	}
	first.ops, second.ops = slices.Clip(t.ops[:cut]), t.ops[cut:]
	return first, second, true
}

func (t *Transaction) elements(v verb, s *Set, elements []Element) {
	if len(elements) == 0 {
		return
	}
	if n := len(t.ops); n > 0 && t.ops[n-1].verb == v && t.ops[n-1].name == s.Name && !t.ops[n-1].joined {
		t.ops[n-1].elements = append(t.ops[n-1].elements, elements...)
		return
	}
	t.ops = append(t.ops, op{verb: v, name: s.Name, set: s, elements: slices.Clip(elements)})
}

// String returns the operation in short, for errors.
func (o *op) String() string {
	switch o.verb {
	case addTable:
		return "add table"
	case deleteTable:
		return "delete table"
	case addChain:
		return "add chain " + o.name
	case flushChain:
		return "flush chain " + o.name
	case deleteChain:
		return "delete chain " + o.name
	case addRule:
		return "add rule to chain " + o.name
	case addSet:
		return "add set " + o.name
	case deleteSet:
		return "delete set " + o.name
	case addElements:
		return "add elements to " + o.name
	case deleteElements:
		return "delete elements from " + o.name
	}
	return "unknown operation"
}

// Text returns the transaction as commands for nft, a line for each thing that changes. (nft cannot execute all of it: it
// knows no names for some base chain attributes that are left out here.)
func (t *Transaction) Text() string {
	var b strings.Builder
	for i := range t.ops {
		t.ops[i].command(&b, t.Table)
	}
	return b.String()
}

func (o *op) command(b *strings.Builder, table TableKey) {
	f := table.Family
	switch o.verb {
	case addTable:
		fmt.Fprintf(b, "add table %v\n", table)
	case deleteTable:
		fmt.Fprintf(b, "delete table %v\n", table)
	case addRule:
		fmt.Fprintf(b, "add rule %v %s %s\n", table, o.name, o.rule.text(f))
	case addElements, deleteElements:
		verb := "add"
		if o.verb == deleteElements {
			verb = "delete"
		}
		for _, e := range o.elements {
			if o.verb == deleteElements {
				e.Comment = ""
			}
			fmt.Fprintf(b, "%s element %v %s { %s }\n", verb, table, o.name, o.set.elementText(f, e))
		}
	default:
		verb, rest, _ := strings.Cut(o.String(), " ")
		kind, name, _ := strings.Cut(rest, " ")
		fmt.Fprintf(b, "%s %s %v %s\n", verb, kind, table, name)
	}
}
