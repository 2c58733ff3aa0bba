package network

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// socket is a non-blocking client socket in a namespace, integrated with the runtime's poller.
type socket struct {
	file *os.File
	raw  syscall.RawConn
	// mine reports whether the packet quoted in an ICMP error belongs to this flow; nil means always. Raw sockets get the
	// errors of all flows between their two addresses, earlier ones included.
	mine func(packet []byte) bool
}

// networkError is an error from the network: an ICMP error or a TCP reset.
type networkError struct {
	errno unix.Errno
	// icmp: the error is an ICMP error that from sent.
	icmp     bool
	icmpType uint8
	icmpCode uint8
	from     netip.Addr
	// localCause: the client's own network stack reports the error.
	localCause bool
	// info is the path MTU if a packet was too big.
	info uint32
}

// ToldMTU returns the MTU in a router's "packet too big" error, or 0 for other errors.
func ToldMTU(err error) uint32 {
	var e *networkError
	if !errors.As(err, &e) || !e.icmp || e.errno != unix.EMSGSIZE {
		return 0
	}
	return e.info
}

// ToldByICMP reports whether an error is an ICMP error from anywhere but the outside router.
func ToldByICMP(err error) bool {
	var e *networkError
	return errors.As(err, &e) && e.icmp && !outsideAddr(e.from)
}

func (e *networkError) Error() string {
	switch {
	case e.icmp:
		return fmt.Sprintf("ICMP error type %d code %d from %v (%v)", e.icmpType, e.icmpCode, e.from, e.errno)
	case e.localCause:
		return fmt.Sprintf("%v, found out by the client itself", e.errno)
	}
	return e.errno.Error()
}

// newSocket opens a socket in a namespace, bound to an address. Listeners elsewhere can still use the port.
func newSocket(ns *namespace, kind, protocol int, local netip.AddrPort) (*socket, error) {
	family, optionLevel, option := unix.AF_INET, unix.SOL_IP, unix.IP_RECVERR
	if local.Addr().Is6() {
		family, optionLevel, option = unix.AF_INET6, unix.SOL_IPV6, unix.IPV6_RECVERR
	}
	fd, err := ns.socket(family, kind, protocol)
	if err != nil {
		return nil, err
	}
	// With this option the kernel queues ICMP errors with their sender, including temporary ones, and keeps errors that
	// arrive while connect holds the socket.
	if err := unix.SetsockoptInt(fd, optionLevel, option, 1); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("setsockopt", err)
	}
	if kind == unix.SOCK_STREAM {
		// Close resets the connection, so that no state remains on either side.
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	if kind == unix.SOCK_STREAM && protocol == unix.IPPROTO_SCTP {
		repeatSoon(fd)
	}
	if err := unix.Bind(fd, sockaddr(local)); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("bind", err)
	}
	s := &socket{file: os.NewFile(uintptr(fd), "client "+local.String())}
	if s.raw, err = s.file.SyscallConn(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *socket) close() { _ = s.file.Close() }

// connect connects. For streams it waits until the connection is established, at most until the deadline.
func (s *socket) connect(to netip.AddrPort, deadline time.Time) error {
	if err := s.file.SetDeadline(deadline); err != nil {
		return err
	}
	started := false
	var result error
	err := s.raw.Write(func(fd uintptr) bool {
		if !started {
			started = true
			if err := unix.Connect(int(fd), sockaddr(to)); err != unix.EINPROGRESS {
				result = s.errorOf(int(fd), err)
				return true
			}
			// An error that arrived in the meantime is in the queue, and wakes the poller.
			return false
		}
		if e := s.pendingError(int(fd)); e != nil {
			result = e
			return true
		}
		_, err := unix.Getpeername(int(fd))
		return err == nil
	})
	if err != nil {
		return err
	}
	return result
}

// send sends a datagram, or a few bytes on a stream, without waiting.
func (s *socket) send(b []byte) error {
	var result error
	err := s.raw.Control(func(fd uintptr) {
		for range maxForeignErrors {
			err := unix.Send(int(fd), b, unix.MSG_NOSIGNAL)
			if result = s.errorOf(int(fd), err); err == nil || result != nil {
				return
			}
		}
	})
	return errors.Join(err, result)
}

// receive waits for data or an error.
func (s *socket) receive(b []byte, deadline time.Time) (n int, err error) {
	if err := s.file.SetDeadline(deadline); err != nil {
		return 0, err
	}
	var result error
	err = s.raw.Read(func(fd uintptr) bool {
		if e := s.pendingError(int(fd)); e != nil {
			result = e
			return true
		}
		for range maxForeignErrors {
			var err error
			n, _, err = unix.Recvfrom(int(fd), b, unix.MSG_DONTWAIT)
			if err == unix.EAGAIN {
				return false
			}
			if result = s.errorOf(int(fd), err); err == nil || result != nil {
				return true
			}
		}
		return false
	})
	if err != nil {
		return 0, err
	}
	return max(n, 0), result
}

// retransmissions returns the number of TCP retransmissions. Each means that a packet or its acknowledgement was lost.
func (s *socket) retransmissions() (n uint32, err error) {
	err = s.raw.Control(func(fd uintptr) {
		if info, e := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); e == nil {
			n = info.Total_retrans
		}
	})
	return n, err
}

// maxForeignErrors is the maximum number of errors from other flows that are skipped at once.
const maxForeignErrors = 64

// errorOf returns the details of a socket call's error. It returns nil if there is no error, or if it belongs to
// another flow.
func (s *socket) errorOf(fd int, err error) error {
	if err == nil {
		return nil
	}
	if e := s.queuedError(fd); e != nil {
		return e
	}
	var errno unix.Errno
	switch {
	case !errors.As(err, &errno):
		return err
	case s.mine != nil && errno != unix.EPERM:
		return nil
	}
	return &networkError{errno: errno}
}

// pendingError returns the socket's pending error, or nil.
func (s *socket) pendingError(fd int) error {
	if e := s.queuedError(fd); e != nil {
		return e
	}
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil || errno == 0 {
		return nil //nolint:nilerr // getsockopt failed: not an error of the flow
	}
	// The error may have arrived since the queue was read.
	return s.errorOf(fd, unix.Errno(errno))
}

// queuedError removes an error of this flow from the socket's queue, or returns nil.
func (s *socket) queuedError(fd int) error {
	control := make([]byte, 512)
	packet := make([]byte, 64)
	for range maxForeignErrors {
		size, n, _, _, err := unix.Recvmsg(fd, packet, control, unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if err != nil {
			return nil //nolint:nilerr // the queue is empty
		}
		if s.mine != nil && !s.mine(packet[:max(size, 0)]) {
			continue
		}
		if e := parseExtendedError(control[:n]); e != nil {
			return e
		}
	}
	return nil
}

// parseExtendedError parses struct sock_extended_err and the following address of the ICMP error's sender.
func parseExtendedError(control []byte) *networkError {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil //nolint:nilerr // unparsable: not an error of the flow
	}
	const size = 16
	for _, m := range messages {
		isError := m.Header.Level == unix.SOL_IP && m.Header.Type == unix.IP_RECVERR ||
			m.Header.Level == unix.SOL_IPV6 && m.Header.Type == unix.IPV6_RECVERR
		if !isError || len(m.Data) < size {
			continue
		}
		e := &networkError{
			errno:    unix.Errno(binary.NativeEndian.Uint32(m.Data)),
			icmpType: m.Data[5], icmpCode: m.Data[6],
			info: binary.NativeEndian.Uint32(m.Data[8:]),
		}
		switch m.Data[4] {
		case unix.SO_EE_ORIGIN_ICMP, unix.SO_EE_ORIGIN_ICMP6:
			e.icmp = true
			e.from = parseSockaddr(m.Data[size:])
		case unix.SO_EE_ORIGIN_LOCAL:
			e.localCause = true
		}
		return e
	}
	return nil
}

// parseSockaddr reads the address in a struct sockaddr_in or sockaddr_in6.
func parseSockaddr(b []byte) netip.Addr {
	if len(b) < 2 {
		return netip.Addr{}
	}
	switch binary.NativeEndian.Uint16(b) {
	case unix.AF_INET:
		if len(b) >= 8 {
			return netip.AddrFrom4([4]byte(b[4:8]))
		}
	case unix.AF_INET6:
		if len(b) >= 24 {
			return netip.AddrFrom16([16]byte(b[8:24])).Unmap()
		}
	}
	return netip.Addr{}
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

// kindOf returns a protocol's socket type.
func kindOf(p model.Protocol) int {
	if p == model.UDP {
		return unix.SOCK_DGRAM
	}
	return unix.SOCK_STREAM
}
