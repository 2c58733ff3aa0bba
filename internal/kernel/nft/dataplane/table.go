package dataplane

import (
	"hash/fnv"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Hook is the hook of a base chain. The zero value is no hook: a chain that others jump to.
type Hook uint8

// The numbers are the kernel's (enum nf_inet_hooks) plus one.
const (
	NoHook      Hook = 0
	Prerouting  Hook = 1
	Input       Hook = 2
	Forward     Hook = 3
	Output      Hook = 4
	Postrouting Hook = 5
)

// String returns nft's name of the hook.
func (h Hook) String() string {
	if names := [...]string{"none", "prerouting", "input", "forward", "output", "postrouting"}; int(h) < len(names) {
		return names[h]
	}
	return "unknown"
}

// Chain is a chain without its rules. One with a hook is a base chain, with policy accept.
type Chain struct {
	// Name must be readable for nft: a letter, then letters, digits, "/", "-", "_" and ".", 127 bytes at most.
	Name     string
	Comment  string // kernel 5.10 and later keep it
	Hook     Hook   // NoHook: a chain that others jump to
	Priority int32  // of base chains, for example -100 for dstnat
	// Filter: a base chain of type filter, which sees all packets. Others are of type nat and see the first of a
	// connection.
	Filter bool
}

// kind returns the type of a base chain.
func (c *Chain) kind() string {
	if c.Filter {
		return "filter"
	}
	return "nat"
}

// Rule is a rule of a chain.
type Rule struct {
	// Statements are evaluated in order, up to the first match that fails. There is at least one; a verdict is the last.
	Statements []Statement
	// Comment is for people. Escape makes one of any text.
	Comment string
}

// Set is a set, map or verdict map, without its elements.
type Set struct {
	// Name must be readable for nft, like that of a [Chain].
	Name string
	// Comment is for people. Escape makes one of any text.
	Comment string
	// Key has the fields that elements are looked up by.
	Key []Field
	// Value has the fields that a map returns; nil for sets and verdict maps.
	Value []Field
	// Verdicts: a verdict map. Its elements go to a chain.
	Verdicts bool
	// Interval: the elements are ranges of the key's only field, of which no two overlap. Not for maps.
	Interval bool
	// Dynamic: rules add elements, which time out, up to 65,535.
	Dynamic bool
	// Size is the maximum number of elements, for which the kernel allocates memory at once. 0: no limit. Not for
	// dynamic sets.
	Size uint32
}

// maxDynamic is the maximum number of elements of a dynamic set without a size, which is the kernel's default. Such a
// set grows as needed, while one with a size takes 16 bytes for each element from the start.
const maxDynamic = 65535

// Element is an element of a set or map.
type Element struct {
	// Key is made with the Append functions, in the order of the set's fields. In an interval set the range's last
	// value follows its first.
	Key string
	// Value is made in the same way for a map; for a verdict map it is the name of the chain that the packet goes to.
	Value string
	// Comment is for people. Escape makes one of any text.
	Comment string
}

// Table is the content of a table. It belongs to the caller of ReadTable.
type Table struct {
	// Key and Comment are the table's own; kernel 5.10 and later keep the comment.
	Key     TableKey
	Comment string
	// Chains has the chains by name.
	Chains map[string]*TableChain
	// Sets has the sets, maps and verdict maps by name.
	Sets map[string]*TableSet
}

// TableChain is a chain with its rules.
type TableChain struct {
	// Chain is as in the kernel. A base chain with a policy other than accept has a Hook that is none of the constants.
	Chain
	// Rules are in the order in which they are evaluated.
	Rules []RuleID
}

// RuleID identifies the content of a rule: rules with the same ID have the same content. The zero value is the ID of
// every rule that another program made.
type RuleID uint64

// TableSet is a set with its elements.
type TableSet struct {
	// Name, Comment, Size and Dynamic are as in [Set].
	Name, Comment string
	Size          uint32
	Dynamic       bool
	// Elements are in no particular order. It is empty for the kernel's dynamic sets, and for sets whose elements were
	// not read.
	Elements []Element

	definition definition
	foreign    bool // it has elements that this package cannot delete
}

// Matches reports whether there is a set, with the definition of want, regardless of elements and comment.
func (s *TableSet) Matches(want *Set) bool {
	return s != nil && !s.foreign && s.definition == definitionOf(want, s.definition.family)
}

// RuleIDs returns the IDs of rules in a table of the family.
func RuleIDs(rules []Rule, family model.Family) []RuleID {
	ids := make([]RuleID, len(rules))
	var text []byte // shared: there may be very many rules
	for i := range rules {
		text = rules[i].append(text[:0], family)
		ids[i] = ruleID(text)
	}
	return ids
}

// ruleID is the hash FNV-1a of a rule as nft prints it.
func ruleID(text []byte) RuleID {
	h := fnv.New64a()
	_, _ = h.Write(text) // which never fails
	return RuleID(max(h.Sum64(), 1))
}

// typeofModulus is the modulus that maps with a Random field are declared with. Rules may have any.
const typeofModulus = 65536

// maxComment is the maximum length of a comment in nft.
const maxComment = 120

// Comment turns any text into a valid comment: printable ASCII without quotes and backslashes, of at most 120 bytes.
func Comment(text string) string {
	if len(text) > maxComment {
		text = text[:maxComment-3] + "..."
	}
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return '_'
		}
		return c
	}, text)
}
