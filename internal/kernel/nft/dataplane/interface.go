package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Interface is a kernel's nftables, or something that behaves like it. Calls may come from several goroutines.
type Interface interface {
	// Apply applies a transaction, all of it or nothing. An error leaves everything as it was.
	//
	// It fails with ErrStale, and changes nothing, if another program may have changed the table since this one last
	// applied or read it, unless the transaction is unconditional.
	Apply(ctx context.Context, tx *Transaction) error
	// Check returns the error that Apply would return, and changes nothing.
	Check(ctx context.Context, tx *Transaction) error
	// ReadTable returns the content of the table, or nil if it does not exist. Earlier changes by others count as seen.
	// The elements of a set are read unless elements is given and returns false.
	ReadTable(ctx context.Context, key TableKey, elements func(*TableSet) bool) (*Table, error)
	// ReadDynamic calls each for the elements of a dynamic set, with the time until they time out; elements without a
	// timeout, which no rule adds, have 0. It is not complete if the kernel may have left some out, because rules
	// changed the set meanwhile.
	ReadDynamic(ctx context.Context, key TableKey, s *Set, each func(e Element, left time.Duration)) (complete bool,
		err error)
	// Drift receives a value soon after another program changed a table that has been read or written here.
	Drift() <-chan struct{}
	// Drifted reports whether another program changed a table. ReadTable resets it.
	Drifted(key TableKey) bool
	// Yield returns how long to wait before the next Apply because another program is reading a ruleset; 0 if none is.
	// See sink.Yielder.
	Yield() time.Duration
	// Close releases its resources, and leaves all tables as they are.
	Close() error
}

// ErrStale is the error of Apply if the table may have changed since it was last seen. Read it and start again.
var ErrStale = errors.New("another program has changed the table")

// TableKey identifies a table.
type TableKey struct {
	// Family is one of the two: tables of nft's family inet are not supported.
	Family model.Family
	// Name is unique in the family.
	Name string
}

// String returns for example "ip kube-proxy-lib", as nft writes it.
func (k TableKey) String() string { return familyText(k.Family) + " " + k.Name }

// OpError is the error of an operation of a transaction.
type OpError struct {
	Table TableKey // of the transaction
	Op    string   // what failed, for example "add chain services"
	Rule  string   // the rule that could not be added, as nft prints it; "" after other operations
	Err   error    // from the kernel a syscall.Errno
	Hint  string   // the kernel's message about it, often empty
}

// Error returns the table, the operation with its rule, the error and the hint.
func (e *OpError) Error() string {
	op := e.Op
	if e.Rule != "" {
		op += " (" + e.Rule + ")"
	}
	s := fmt.Sprintf("table %v: %s: %v", e.Table, op, e.Err)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the error of the kernel.
func (e *OpError) Unwrap() error { return e.Err }

func familyText(f model.Family) string {
	if f == model.IPv6 {
		return "ip6"
	}
	return "ip"
}
