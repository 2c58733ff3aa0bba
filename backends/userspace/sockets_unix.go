//go:build unix

package userspace

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// awaitDatagram waits until a datagram can be read from a socket.
func awaitDatagram(c syscall.RawConn) error {
	return c.Read(func(fd uintptr) bool {
		// The poller reports only changes, so look first.
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return n != 0 || err != nil && err != unix.EINTR
	})
}

// cannotSend reports whether nothing can be sent on a connection any more, because it was reset, or because this side
// has closed it or its own half.
func cannotSend(c net.Conn) bool {
	conn, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var failed error
	err = raw.Control(func(fd uintptr) { _, failed = unix.Write(int(fd), nil) })
	return err != nil || failed != nil && failed != unix.EAGAIN && failed != unix.EINTR
}
