package userspace

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// transparent lets a socket connect from an address that the host does not have. It implements net.Dialer.Control.
func transparent(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = setTransparent(int(fd)) })
	return errors.Join(err, failed)
}

func setTransparent(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); err != nil { // of IPv6 sockets as well
		return fmt.Errorf("set IP_TRANSPARENT, which needs CAP_NET_ADMIN: %w", err)
	}
	// Choose the port in connect(2), not in bind(2): connections to different endpoints can then share one.
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return fmt.Errorf("set IP_BIND_ADDRESS_NO_PORT: %w", err)
	}
	return nil
}

// canKeepSource returns the reason why this process cannot connect from clients' addresses, or nil.
func canKeepSource() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open a socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return setTransparent(fd)
}
