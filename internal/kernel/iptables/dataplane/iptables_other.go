//go:build !linux

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// IPTables is the kernel's iptables, which only Linux has.
type IPTables struct {
	Interface // nil: New always fails
}

// New returns an error that wraps [errors.ErrUnsupported], because only Linux has iptables.
func New(context.Context, Options) (*IPTables, error) {
	return nil, fmt.Errorf("iptables on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

func surveyVariant(context.Context, model.Family, Variant) (inUse, error) {
	return inUse{}, errors.ErrUnsupported
}
