//go:build !linux

package dataplane

import (
	"errors"
	"fmt"
	"runtime"
)

// Netlink is the kernel's nftables, which this operating system does not have.
type Netlink struct {
	Interface // nil: NewNetlink always fails
}

// NewNetlink returns an error that wraps [errors.ErrUnsupported]: nftables is a part of Linux.
func NewNetlink() (*Netlink, error) {
	return nil, fmt.Errorf("nftables on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
