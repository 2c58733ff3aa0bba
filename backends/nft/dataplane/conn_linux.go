package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// conn is a netlink socket. What is sent is answered before sending returns: the kernel handles nf_tables messages in the
// system call. So nothing here ever waits.
type conn struct {
	*netlink.Conn
	raw  syscall.RawConn
	port uint32 // the socket's address, by which the kernel says who changed something
	recv []byte
}

const (
	// Batches are one message to the socket, which must be able to hold it: 30,000 services with 10 endpoints each are
	// 15 MB. Nothing is allocated until it is needed.
	sendBuffer = 256 << 20
	recvBuffer = 16 << 20
	// The kernel fills at most 32 KiB at a time when it dumps, and less if it has seen smaller reads.
	recvSize = 64 << 10
)

func dial() (*conn, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("netlink socket for nf_tables: %w", err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	s := &conn{Conn: c, raw: raw, recv: make([]byte, recvSize)}
	err = s.control(func(fd int) error {
		// Beyond the system's limits where that is allowed, and otherwise as far as they go.
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
		}
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recvBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, recvBuffer)
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) // errors without the message that failed
		sa, err := unix.Getsockname(fd)
		if nl, ok := sa.(*unix.SockaddrNetlink); ok {
			s.port = nl.Pid
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

func (c *conn) control(f func(fd int) error) error {
	var err error
	if e := c.raw.Control(func(fd uintptr) { err = f(int(fd)) }); e != nil {
		return e
	}
	return err
}

func (c *conn) send(b []byte) error {
	return c.control(func(fd int) error {
		for {
			err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
			if err != unix.EINTR {
				return err
			}
		}
	})
}

// receive returns what is there, and EAGAIN if there is nothing. It is valid until the next call.
func (c *conn) receive() ([]byte, error) {
	var n int
	err := c.control(func(fd int) error {
		for {
			var err error
			n, _, err = unix.Recvfrom(fd, c.recv, unix.MSG_DONTWAIT)
			if err != unix.EINTR {
				return err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return c.recv[:n], nil
}

// message is a netlink message that came in.
type message struct {
	typ, flags uint16
	seq, port  uint32
	data       []byte // after netlink's header
}

// messages calls back for each message in b, until that returns an error.
func messages(b []byte, f func(message) error) error {
	for len(b) >= unix.SizeofNlMsghdr {
		n := int(binary.NativeEndian.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > len(b) {
			return fmt.Errorf("malformed netlink message of %d bytes, %d received", n, len(b))
		}
		m := message{
			typ:   binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
			port:  binary.NativeEndian.Uint32(b[12:]),
			data:  b[unix.SizeofNlMsghdr:n],
		}
		if err := f(m); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// failure returns the error that a message of type NLMSG_ERROR carries, 0 for an acknowledgement, and the kernel's
// explanation if there is one.
func (m message) failure() (syscall.Errno, string) {
	if len(m.data) < 4+unix.SizeofNlMsghdr {
		return unix.EBADMSG, ""
	}
	errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.data)))
	hint := ""
	if m.flags&unix.NLM_F_ACK_TLVS != 0 {
		at := 4 + unix.SizeofNlMsghdr
		if m.flags&unix.NLM_F_CAPPED == 0 {
			at = 4 + int(binary.NativeEndian.Uint32(m.data[4:]))
		}
		attributes(m.data[min((at+3)&^3, len(m.data)):], func(typ uint16, v []byte) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				hint = cstring(v)
			}
		})
	}
	return errno, hint
}

// dump sends a request for a list and calls back for each message of the answer. It fails with errInterrupted if the list
// changed under way.
func (c *conn) dump(w *wire, f func(message) error) error {
	if err := c.send(w.buf); err != nil {
		return err
	}
	done, interrupted := false, false
	for !done {
		b, err := c.receive()
		if err != nil {
			return err
		}
		err = messages(b, func(m message) error {
			if m.seq != w.seq {
				return nil // left over from a request that failed
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.typ {
			case unix.NLMSG_DONE:
				done = true
				if len(m.data) >= 4 {
					if errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.data))); errno != 0 {
						return errno
					}
				}
				return nil
			case unix.NLMSG_ERROR:
				done = true
				if errno, _ := m.failure(); errno != 0 {
					return errno
				}
				return nil
			}
			return f(m)
		})
		if err != nil {
			c.drain()
			return err
		}
	}
	if interrupted {
		return errInterrupted
	}
	return nil
}

var errInterrupted = errors.New("the ruleset changed while it was read")

// drain throws away what is there. A dump goes on for as long as it is read.
func (c *conn) drain() {
	for {
		if _, err := c.receive(); err != nil && err != unix.ENOBUFS {
			return
		}
	}
}
