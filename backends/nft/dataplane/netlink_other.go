//go:build !linux

package dataplane

import "errors"

// Netlink is the kernel's nftables. This operating system has none, so that nobody gets one.
type Netlink struct{ Interface }

// ErrNotLinux is what NewNetlink fails with where there is no nftables.
var ErrNotLinux = errors.New("nftables is a part of Linux")

// NewNetlink fails with ErrNotLinux.
func NewNetlink() (*Netlink, error) { return nil, ErrNotLinux }
