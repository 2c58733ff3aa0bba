//go:build !linux

package dataplane

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// IPTables is the kernel's iptables. There is none on this operating system.
type IPTables struct{ Interface }

// New fails with ErrNotLinux.
func New(context.Context, Options) (*IPTables, error) { return nil, ErrNotLinux }

func surveyVariant(context.Context, model.Family, Variant) (inUse, error) {
	return inUse{}, ErrNotLinux
}
