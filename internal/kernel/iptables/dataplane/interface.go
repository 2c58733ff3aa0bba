package dataplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Interface is the iptables of one family in one network namespace, or a fake. It may be used concurrently.
type Interface interface {
	// Features returns the features that New found. They do not change.
	Features() Features
	// Restore applies a batch: one run of iptables-restore --noflush, atomic for each table. The error is a *RestoreError
	// if the failing line is known.
	Restore(ctx context.Context, b *Batch) error
	// Read returns the chains of a table whose names start with prefix, and the rules of the table's built-in chains
	// that jump to one of them. Everything else in the table is left out.
	Read(ctx context.Context, table Table, prefix string) (*State, error)
	// Generation returns a value that changes when any program, including Restore, changes rules in table nat or filter.
	// It starts no program and takes microseconds, so it may be called often. It can miss changes that keep a table's
	// size, and also changes with other tables and chains: Read shows what changed.
	Generation(ctx context.Context) (uint64, error)
	// Yield returns how long to postpone the next Restore because another program is reading a ruleset and would have to
	// restart; 0 if none is, and with iptables-legacy. See sink.Yielder.
	Yield() time.Duration
	// EnsureCounter creates a counter of packets, unless it exists: the kernel's nfacct object of that name, at most 31
	// bytes, which a rule counts with if it has the match of [CountWith]. It fails where the kernel has no such objects.
	// Whether it and the program have the match, only a Restore shows.
	EnsureCounter(name string) error
	// CountedPackets returns how many packets rules have counted with a counter since it was created. Neither it nor
	// EnsureCounter waits for a program.
	CountedPackets(name string) (uint64, error)
	// RemoveCounter removes a counter. It is not an error if that does not exist, or if rules still use it: then it stays.
	RemoveCounter(name string) error
	// Close releases its resources. The rules stay.
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

// Variant is the kernel subsystem that the programs use.
type Variant string

const (
	NFT    Variant = "nft"    // iptables-nft: nf_tables underneath
	Legacy Variant = "legacy" // iptables-legacy: x_tables; each batch replaces the whole table
)

// Options select the iptables that New uses.
type Options struct {
	// Family defaults to IPv4.
	Family model.Family
	// Variant is NFT or Legacy. Default: the one that the node already uses: that with the kubelet's chain
	// KUBE-IPTABLES-HINT or KUBE-KUBELET-CANARY in table mangle, otherwise the one with more rules, otherwise that of the
	// plain "iptables".
	Variant Variant
}

// Features are the features of an iptables.
type Features struct {
	Family  model.Family // the IP family
	Variant Variant      // never ""
}

// Batch is the input of iptables-restore, table by table. The zero Batch is empty.
type Batch struct {
	// Tables are applied in this order, each atomically. Tables without changes are not part of the input. The same
	// table may be there several times.
	Tables []TableBatch
}

// TableBatch has the changes of one table, applied atomically: Chains first, then Delete and Insert in built-in chains,
// then Remove. It must not be changed once it has been passed to Restore.
type TableBatch struct {
	// Table is the table to change.
	Table Table
	// Chains are created if necessary, emptied, and filled. All of them exist before the first rule is added.
	Chains []Chain
	// Delete removes the first equal rule, if there is one. Insert adds rules at the start of built-in chains, in list
	// order, even if they exist. To move a rule, delete and insert it.
	Delete, Insert []BuiltinRule
	// Remove lists chains to empty and delete, if they exist. Only chains in the list may still jump to them.
	Remove []string
}

// Chain is one of the backend's chains with its rules in order.
type Chain struct {
	// Name has at most 28 bytes, the limit of iptables.
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

// State is the result of Read for a table.
type State struct {
	Chains map[string][]string // rules by chain
	Jumps  []BuiltinRule       // from built-in chains to the backend's, in order
}

// RestoreError is the error of a rejected batch.
type RestoreError struct {
	Family model.Family // of the iptables
	Table  Table        // "" if unknown
	Line   int          // in the input, starting at 1; 0 if unknown
	Text   string       // that line
	Origin string       // Chain.Origin of the line's chain
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

// RefusedRemoval returns the chain that could not be removed, usually because a chain of others jumps to it; "" if
// another line failed, or it is not known which.
func (e *RestoreError) RefusedRemoval() string {
	chain, _ := strings.CutPrefix(e.Text, "-X ")
	if chain == e.Text {
		return ""
	}
	return chain
}

// Unwrap returns the error of the program.
func (e *RestoreError) Unwrap() error { return e.Err }
