//go:build !linux

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"runtime"
)

// Kernel is the kernel's IPVS, which this operating system does not have.
type Kernel struct {
	Interface // nil: NewKernel always fails
}

// NewKernel returns an error that wraps [errors.ErrUnsupported]: IPVS is a part of Linux.
func NewKernel(context.Context, string) (*Kernel, error) {
	return nil, fmt.Errorf("IPVS on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}

// IsLoaded is false.
func IsLoaded() bool { return false }
