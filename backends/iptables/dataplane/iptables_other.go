//go:build !linux

package dataplane

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// IPTables is the kernel's iptables. There is none on this operating system.
type IPTables struct{}

var _ Interface = (*IPTables)(nil)

// New fails with ErrNotLinux.
func New(context.Context, Options) (*IPTables, error) { return nil, ErrNotLinux }

// Survey fails with ErrNotLinux.
func Survey(context.Context, model.Family) ([]InUse, error) { return nil, ErrNotLinux }

func surveyVariant(context.Context, model.Family, Variant) (InUse, error) {
	return InUse{}, ErrNotLinux
}

// Features implements [Interface].
func (*IPTables) Features() Features { return Features{} }

// Restore implements [Interface].
func (*IPTables) Restore(context.Context, *Batch) error { return ErrNotLinux }

// Read implements [Interface].
func (*IPTables) Read(context.Context, Table, string) (*State, error) { return nil, ErrNotLinux }

// Has implements [Interface].
func (*IPTables) Has(context.Context, Table, string) (bool, error) { return false, ErrNotLinux }

// Generation implements [Interface].
func (*IPTables) Generation(context.Context) (uint64, error) { return 0, ErrNotLinux }

// Close implements [Interface].
func (*IPTables) Close() error { return nil }
