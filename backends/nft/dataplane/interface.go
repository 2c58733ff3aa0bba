package dataplane

import (
	"context"
	"errors"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Interface is a kernel's nftables, or something that behaves like it. Calls may come from several goroutines.
type Interface interface {
	// Apply applies a transaction, all of it or nothing. An error leaves everything as it was.
	//
	// It fails with ErrStale, and does nothing, if another program may have changed the table since the last Apply or
	// ReadTable of it here, unless the transaction is unconditional.
	Apply(ctx context.Context, tx *Transaction) error
	// Check reports whether Apply would succeed, and changes nothing.
	Check(ctx context.Context, tx *Transaction) error
	// ReadTable returns what the table holds, or nil if there is no such table. Changes of others until now count as
	// seen. The elements of a set are read unless elements is given and says no.
	ReadTable(ctx context.Context, key TableKey, elements func(*TableSet) bool) (*Table, error)
	// Drift has a value soon after another program changed a table that has been read or written here.
	Drift() <-chan struct{}
	// Drifted reports whether a table is among those that another program changed. ReadTable resets it.
	Drifted(key TableKey) bool
	// Close releases what it holds, and leaves all tables as they are.
	Close() error
}

// ErrStale is what Apply fails with if the table is no longer what it was last seen to be. Read it and start again.
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

// OpError is why an operation of a transaction failed.
type OpError struct {
	Table TableKey // of the transaction
	Op    string   // what failed, for example "add chain services"
	Err   error    // from the kernel a syscall.Errno
	Hint  string   // what the kernel had to say about it, often nothing
}

// Error returns the table, the operation, the error and the hint.
func (e *OpError) Error() string {
	s := fmt.Sprintf("table %v: %s: %v", e.Table, e.Op, e.Err)
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
