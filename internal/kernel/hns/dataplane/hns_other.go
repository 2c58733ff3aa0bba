//go:build !windows

package dataplane

import (
	"errors"
	"fmt"
	"runtime"
)

// NewHNS returns an error that wraps [errors.ErrUnsupported]: HNS is a part of Windows.
func NewHNS() (Interface, error) {
	return nil, fmt.Errorf("HNS on %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
