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

// maxFiles returns how many files this process may have open.
func maxFiles() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024
	}
	return int(min(limit.Cur, 1<<30)) //nolint:gosec // it fits
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
