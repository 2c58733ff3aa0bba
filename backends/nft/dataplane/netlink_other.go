//go:build !linux

package dataplane

import (
	"errors"
	"fmt"
	"runtime"
)

// Netlink is the kernel's nftables. This operating system has none, so that nobody gets one.
type Netlink struct {
	Interface // nil: there is nothing to implement it with
}

// NewNetlink returns an error that wraps [errors.ErrUnsupported]: nftables is a part of Linux.
func NewNetlink() (*Netlink, error) {
	return nil, fmt.Errorf("nftables on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
