package dataplane

import (
	"context"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Interface is the iptables of one family in one network namespace, or something that behaves like it. Calls may come
// from several goroutines.
type Interface interface {
	// Features returns what New found. It does not change.
	Features() Features
	// Restore applies a batch: one run of iptables-restore --noflush, atomic for each table. The error is a
	// *RestoreError if a line can be named.
	Restore(ctx context.Context, b *Batch) error
	// Read returns the chains of a table whose names start with prefix, and the rules of the table's built-in chains
	// that jump to one of them. Everything else in the table is left out.
	Read(ctx context.Context, table Table, prefix string) (*State, error)
	// Generation returns a value that changes when any program, including Restore, changes rules in table nat or
	// filter. It starts no program and takes microseconds, so it may be called often. It can miss changes that keep the
	// size of a table, and it can change because of other tables and chains: Read shows what changed.
	Generation(ctx context.Context) (uint64, error)
	// Close releases its resources, and leaves all rules as they are.
	Close() error
}

// Table is one of iptables' tables.
type Table string

// The tables that a service proxy uses.
const (
	Filter Table = "filter"
	NAT    Table = "nat"
	Mangle Table = "mangle"
)

// Variant says which kernel subsystem the programs use.
type Variant string

const (
	NFT    Variant = "nft"    // iptables-nft: nf_tables underneath
	Legacy Variant = "legacy" // iptables-legacy: x_tables, the whole table is replaced for each batch
)

// Options say which iptables New uses.
type Options struct {
	// Family is IPv4 if it is 0.
	Family model.Family
	// Variant is NFT or Legacy. Default: the one that the node already uses. That is the one in which the kubelet has
	// left a hint (the chains KUBE-IPTABLES-HINT or KUBE-KUBELET-CANARY in table mangle), else the one with more rules,
	// else that of the plain "iptables".
	Variant Variant
}

// Features are what an iptables can do.
type Features struct {
	Family  model.Family // the IP family
	Variant Variant      // never ""
}

// Batch is the input of iptables-restore, table by table. The zero Batch is empty.
type Batch struct {
	// Tables are applied in this order, each atomically. Those without changes are left out of the input.
	Tables []TableBatch
}

// TableBatch is what happens to one table, all at once: Chains first, then in built-in chains Delete and Insert, then
// Remove. It must not be changed once it has been passed to Restore.
type TableBatch struct {
	// Table is the table to change.
	Table Table
	// Chains are created if necessary, emptied, and filled. All of them exist before the first rule is added.
	Chains []Chain
	// Delete removes the first equal rule, if there is one. Insert puts rules at the head of built-in chains, in the
	// order of the list, whether or not they already exist. To move a rule, delete and insert it.
	Delete, Insert []BuiltinRule
	// Remove lists chains to empty and delete, if they exist. Only chains of the list may still jump to them.
	Remove []string
}

// Chain is a chain of our own and its rules in order.
type Chain struct {
	// Name is at most 28 bytes: iptables refuses longer ones.
	Name string
	// Rules are the rules without "-A NAME ", in the form in which iptables-save prints them: see Quote, Address,
	// Masked and Probability.
	Rules []string
	// Origin names the owner of the chain in errors, for example a service.
	Origin string
}

// BuiltinRule is a rule in a built-in chain, for example PREROUTING.
type BuiltinRule struct {
	// Chain is the name of the built-in chain.
	Chain string
	// Rule is the rule in the form of [Chain.Rules].
	Rule string
}

// State is what Read returns of a table.
type State struct {
	Chains map[string][]string // rules by the name of the chain
	Jumps  []BuiltinRule       // from built-in chains to ours, in order
}

// RestoreError is the error of a refused batch.
type RestoreError struct {
	Family model.Family // whose iptables refused it
	Table  Table        // "" if unknown
	Line   int          // in the input, from 1; 0 if unknown
	Text   string       // that line
	Origin string       // Chain.Origin of the chain that the line belongs to
	Err    error        // with the message of iptables-restore
}

// Error returns the family and the message of iptables-restore, and the line and its origin if they are known.
func (e *RestoreError) Error() string {
	s := fmt.Sprintf("%v: %v", e.Family, e.Err)
	if e.Line > 0 {
		s += fmt.Sprintf(": line %d, %q", e.Line, e.Text)
	}
	if e.Origin != "" {
		s += ", of " + e.Origin
	}
	return s
}

// Unwrap returns the error of the program.
func (e *RestoreError) Unwrap() error { return e.Err }
