//go:build !windows

package dataplane

// NewHNS returns the HNS of this machine: on this system there is none.
func NewHNS() (Interface, error) { return nil, ErrUnsupported }
