package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// socket is a netlink socket that is read into one buffer, over and over: netlink.Conn makes a new one for every read,
// which for a large table is most of the work.
type socket struct {
	conn *netlink.Conn
	raw  syscall.RawConn
	buf  []byte
	stop func() bool
}

// receiveBuffer is more than the kernel puts into one read of a dump (32 KiB). A read that did not fit would end within a
// message, which parseMessage reports.
const receiveBuffer = 64 << 10

// openSocket opens a socket whose calls fail when ctx ends.
func openSocket(ctx context.Context, netns int) (*socket, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: netns})
	if err != nil {
		return nil, fmt.Errorf("conntrack: opening a netlink socket: %w", err)
	}
	// Answers to requests that fail need not repeat the request. A kernel that does not know that repeats it.
	_ = conn.SetOption(netlink.CapAcknowledge, true)
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("conntrack: %w", err)
	}
	s := &socket{conn: conn, raw: raw, buf: make([]byte, receiveBuffer)}
	s.stop = context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return s, nil
}

func (s *socket) close() {
	s.stop()
	_ = s.conn.Close()
}

// send sends one or more messages in one system call.
func (s *socket) send(messages []byte) error {
	var err error
	if rerr := s.raw.Write(func(fd uintptr) bool {
		for {
			err = unix.Sendto(int(fd), messages, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	}); rerr != nil {
		return rerr
	}
	return os.NewSyscallError("sendto", err)
}

// receive calls handle with every message that comes until that returns true or an error. A message is valid during the
// call only.
func (s *socket) receive(handle func(message) (done bool, err error)) error {
	for {
		n, err := s.read()
		if err != nil {
			return err
		}
		for b := s.buf[:n]; len(b) > 0; {
			m, size, err := parseMessage(b)
			if err != nil {
				return err
			}
			if done, err := handle(m); done || err != nil {
				return err
			}
			b = b[size:]
		}
	}
}

func (s *socket) read() (n int, err error) {
	if rerr := s.raw.Read(func(fd uintptr) bool {
		for {
			n, err = unix.Read(int(fd), s.buf)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	}); rerr != nil {
		return 0, rerr
	}
	return n, os.NewSyscallError("read", err)
}

// message is a netlink message.
type message struct {
	kind, flags uint16
	sequence    uint32
	data        []byte
}

// err returns the error that a message reports, if it is one that does.
func (m message) err() error {
	if m.kind != unix.NLMSG_ERROR && m.kind != unix.NLMSG_DONE || len(m.data) < 4 {
		return nil
	}
	if errno := -int32(binary.NativeEndian.Uint32(m.data)); errno != 0 {
		return unix.Errno(errno)
	}
	return nil
}

func parseMessage(b []byte) (m message, size int, err error) {
	if len(b) < unix.NLMSG_HDRLEN {
		return message{}, 0, errors.New("conntrack: a netlink message is cut short")
	}
	length := int(binary.NativeEndian.Uint32(b))
	if length < unix.NLMSG_HDRLEN || length > len(b) {
		return message{}, 0, fmt.Errorf("conntrack: a netlink message has the impossible length %d", length)
	}
	m = message{
		kind:     binary.NativeEndian.Uint16(b[4:]),
		flags:    binary.NativeEndian.Uint16(b[6:]),
		sequence: binary.NativeEndian.Uint32(b[8:]),
		data:     b[unix.NLMSG_HDRLEN:length],
	}
	return m, min(align(length), len(b)), nil
}

// align rounds up to the next multiple of 4, as netlink does.
func align(n int) int { return (n + 3) &^ 3 }
