//go:build !unix

package userspace

import (
	"net"
	"syscall"
)

// awaitDatagram waits until a datagram can be read from a socket, if the system supports that.
func awaitDatagram(c syscall.RawConn) error {
	asked := false
	return c.Read(func(uintptr) bool {
		again := asked
		asked = true
		return again
	})
}

// cannotSend returns false: on these systems a reset is reported to reads as well as to writes.
func cannotSend(net.Conn) bool { return false }

// maxFiles returns how many files this process may have open: there is no such limit.
func maxFiles() int { return 1 << 30 }
