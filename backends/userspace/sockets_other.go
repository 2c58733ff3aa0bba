//go:build !unix

package userspace

import (
	"net"
	"syscall"
)

// awaitDatagram waits until a datagram can be read from a socket, where the system can tell.
func awaitDatagram(c syscall.RawConn) error {
	asked := false
	return c.Read(func(uintptr) bool {
		again := asked
		asked = true
		return again
	})
}

// cannotSend would tell whether a connection was reset. Here reads and writes are both told so themselves.
func cannotSend(net.Conn) bool { return false }
