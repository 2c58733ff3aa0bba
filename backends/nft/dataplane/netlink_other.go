//go:build !linux

package dataplane

import (
	"context"
	"errors"
)

// Netlink is the kernel's nftables. There is none on this operating system.
type Netlink struct{}

var _ Interface = (*Netlink)(nil)

// ErrNotLinux is what NewNetlink and all calls fail with where there is no nftables.
var ErrNotLinux = errors.New("nftables is a part of Linux")

// NewNetlink fails with ErrNotLinux.
func NewNetlink() (*Netlink, error) { return nil, ErrNotLinux }

// Apply implements [Interface].
func (*Netlink) Apply(context.Context, *Transaction) error { return ErrNotLinux }

// Check implements [Interface].
func (*Netlink) Check(context.Context, *Transaction) error { return ErrNotLinux }

// ReadTable implements [Interface].
func (*Netlink) ReadTable(context.Context, TableKey, func(*Set) bool) (*Table, error) {
	return nil, ErrNotLinux
}

// Drift implements [Interface].
func (*Netlink) Drift() <-chan struct{} { return nil }

// Drifted implements [Interface].
func (*Netlink) Drifted(TableKey) bool { return false }

// Close implements [Interface].
func (*Netlink) Close() error { return nil }
