//go:build !linux

package userspace

import (
	"errors"
	"syscall"
)

var errNoTransparency = errors.New("connecting from clients' addresses needs Linux")

func transparent(string, string, syscall.RawConn) error { return errNoTransparency }

func canKeepSource() error { return errNoTransparency }
