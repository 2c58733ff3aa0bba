//go:build unix

package userspace

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// awaitDatagram waits until a datagram can be read from a socket.
func awaitDatagram(c syscall.RawConn) error {
	return c.Read(func(fd uintptr) bool {
		// The poller tells of changes alone, so ask first.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n != 0 || err != nil && err != unix.EINTR
	})
}
