package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// Seen is the result of a flow. Verdict is NotOurs for packets that left the node unchanged.
type Seen struct {
	oracle.Observation
	// Detail describes what was seen, for messages.
	Detail string
	// Accepted: the connection was accepted before it was refused.
	Accepted bool
	// Lost: a packet was lost and retransmitted.
	Lost bool
	// port is the client's port, or 0.
	port uint16
	// Broken is an error of the test network itself, not of the backend.
	Broken error
}

func (s Seen) String() string {
	if s.port != 0 {
		return fmt.Sprintf("%s, from port %d", s.outcome(), s.port)
	}
	return s.outcome()
}

func (s Seen) outcome() string {
	switch {
	case s.Broken != nil:
		return fmt.Sprintf("the test itself failed: %v", s.Broken)
	case s.Verdict == oracle.NotOurs:
		return "left the node unchanged: " + s.Detail
	case s.Verdict == 0:
		return "something else: " + s.Detail
	case s.Accepted:
		return fmt.Sprintf("%v after the connection was accepted: %s", s.Observation, s.Detail)
	case s.Detail != "":
		return fmt.Sprintf("%v: %s", s.Observation, s.Detail)
	}
	return s.Observation.String()
}

// Timeouts limit how long a flow waits for an answer.
type Timeouts struct {
	// Answer is how long to wait for an answer or a refusal before a flow counts as dropped.
	Answer time.Duration
	// Quiet is how long to wait where a drop is expected.
	Quiet time.Duration
}

// DefaultTimeouts returns the timeouts for real, not emulated, machines.
func DefaultTimeouts() Timeouts {
	return Timeouts{Answer: 10 * time.Second, Quiet: 100 * time.Millisecond}
}

// Connection is the client's side of a connection.
type Connection struct {
	Flow  Attempt
	Local netip.AddrPort
	sock  *socket
	n     *Network
	asked int
	lost  bool // a datagram had to be resent
}

// Open opens a connection. For TCP it waits until the connection is established; other protocols send nothing yet. If a
// source port was allocated, a failed connection is returned too, closed.
func (n *Network) Open(f Attempt, deadline time.Time) (*Connection, error) {
	c := &Connection{Flow: f, n: n}
	ns := n.namespaceOf(f.from)
	for attempt := 0; ; attempt++ {
		band := f.Ports
		if band == (PortBand{}) {
			band = anyPort
		}
		port, err := n.ports.take(f.Source, f.Destination, f.Protocol, band)
		if err != nil {
			return nil, err
		}
		c.Local = netip.AddrPortFrom(f.Source, port)
		kind, bind := kindOf(f.Protocol), c.Local
		if n.RawSCTP(f) {
			kind, bind = unix.SOCK_RAW, netip.AddrPortFrom(f.Source, 0)
		}
		c.sock, err = newSocket(ns, kind, int(f.Protocol), bind)
		if err == nil {
			break
		}
		if !IsErrno(err, unix.EADDRINUSE) || attempt == 100 {
			return nil, brokenError{fmt.Errorf("client in %s: %w", ns.name, err)}
		}
	}
	to := f.Destination
	if n.RawSCTP(f) {
		c.sock.mine = sentFrom(c.Local.Port())
		to = netip.AddrPortFrom(to.Addr(), 0)
	}
	if err := c.sock.connect(to, deadline); err != nil {
		c.Close()
		return c, err
	}
	return c, nil
}

// RawSCTP reports whether a flow uses a raw socket.
func (n *Network) RawSCTP(f Attempt) bool { return f.Protocol == model.SCTP && n.sctp == userSpaceSCTP }

// Close ends the connection.
func (c *Connection) Close() { c.sock.close() }

// ForbidFragments makes the kernel send each datagram in one packet or not at all, whatever path MTU it has learned.
func (c *Connection) ForbidFragments() error {
	var result error
	err := c.sock.raw.Control(func(fd uintptr) {
		level, option, value := unix.SOL_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE
		name, err := unix.Getsockname(int(fd))
		if _, six := name.(*unix.SockaddrInet6); six {
			level, option, value = unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE
			err = errors.Join(err, unix.SetsockoptInt(int(fd), level, unix.IPV6_DONTFRAG, 1))
		}
		result = errors.Join(err, unix.SetsockoptInt(int(fd), level, option, value))
	})
	return errors.Join(err, result)
}

// resendAfter is the time after which an unanswered datagram is resent. If many flows start at once, the kernel may
// drop one whose translated port another flow has just taken.
const resendAfter = 500 * time.Millisecond

// Ask asks which server is at the other end.
func (c *Connection) Ask(deadline time.Time) (Answer, error) { return c.AskLong(0, deadline) }

// AskLong sends a question of at least size bytes. The answer repeats all of it.
func (c *Connection) AskLong(size int, deadline time.Time) (Answer, error) {
	c.asked++
	question := fmt.Sprintf("kpl-%d", c.asked)
	if missing := size - len(question) - len("-\n"); missing > 0 {
		question += "-" + filling(missing)
	}
	for {
		until := deadline
		if again := time.Now().Add(resendAfter); c.Flow.Protocol != model.TCP && again.Before(until) {
			until = again
		}
		a, err := c.askOnce(question, until)
		if !errors.Is(err, os.ErrDeadlineExceeded) || until.Equal(deadline) {
			return a, err
		}
		c.lost = true
	}
}

// filling returns a text of a given length. No two parts of it are equal.
func filling(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%d.", i)
	}
	return b.String()[:size]
}

func (c *Connection) askOnce(question string, deadline time.Time) (Answer, error) {
	if c.n.RawSCTP(c.Flow) {
		return askUserSpaceSCTP(c.sock, c.Local.Port(), c.Flow.Destination, uint32(c.Local.Port())<<16|uint32(c.asked),
			deadline)
	}
	// EPERM: an output filter dropped the packet. Its ICMP error, if any, arrives separately.
	if err := c.sock.send([]byte(question + "\n")); err != nil && !IsErrno(err, unix.EPERM) {
		return Answer{}, err
	}
	buf := make([]byte, 256+len(question))
	for {
		n, err := c.sock.receive(buf, deadline)
		if err != nil {
			return Answer{}, err
		}
		if n == 0 {
			return Answer{}, errors.New("the other end closed the connection")
		}
		a, err := decodeAnswer(buf[:n])
		if err != nil {
			return Answer{}, garbledError{err}
		}
		// An answer to an earlier question may still be in flight.
		if a.echo == question {
			return a, nil
		}
	}
}

// brokenError is an error of the test network, not of the backend.
type brokenError struct{ error }

func (e brokenError) Unwrap() error { return e.error }

// garbledError says that an answer is not from a server of the test network.
type garbledError struct{ error }

// Try makes one new connection, asks which server answers, and closes it.
func (n *Network) Try(f Attempt, p Timeouts) Seen {
	timeout := p.Answer
	if f.DropIsRight {
		timeout = p.Quiet
	}
	c, err := n.Open(f, time.Now().Add(timeout))
	if c == nil {
		return classify(err, timeout)
	}
	defer c.Close()
	var a Answer
	if err == nil {
		a, err = c.Ask(time.Now().Add(timeout))
	}
	if err != nil {
		s := classify(err, timeout)
		s.port = c.Local.Port()
		return s
	}
	s := Seen{Observation: oracle.Observation{Verdict: oracle.Deliver, Endpoint: a.Server, Source: a.Client.Addr()},
		Lost: c.lost, port: c.Local.Port()}
	if f.Protocol == model.TCP {
		if repeated, err := c.sock.retransmissions(); err == nil && repeated > 0 {
			s.Lost = true
		}
	}
	return s
}

// classify converts an error to a flow's result. The backend may cause any error, except errors of the client's sockets
// before anything was sent.
func classify(err error, waited time.Duration) Seen {
	var network *networkError
	var broken brokenError
	var garbled garbledError
	see := func(v oracle.Verdict) Seen {
		return Seen{Observation: oracle.Observation{Verdict: v}, Detail: err.Error()}
	}
	switch {
	case errors.As(err, &broken):
		return Seen{Broken: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		s := see(oracle.Drop)
		s.Detail = fmt.Sprintf("nothing came within %v", waited)
		return s
	case errors.As(err, &garbled):
		return see(0)
	case !errors.As(err, &network):
		return see(oracle.Drop)
	case network.icmp && outsideAddr(network.from),
		// The kernel's SCTP sockets do not report an error's sender. Only the outside router sends this error.
		!network.icmp && !network.localCause && network.errno == unix.ENETUNREACH:
		return see(oracle.NotOurs)
	case network.icmp, network.errno == unix.ECONNREFUSED:
		return see(oracle.Reject)
	}
	switch network.errno {
	case unix.ECONNRESET, unix.EPIPE:
		s := see(oracle.Reject)
		s.Accepted = true
		return s
	case unix.EINVAL: // a blackhole route causes this error for the node's own processes
		return see(oracle.Drop)
	case unix.EACCES, unix.EPERM, unix.EHOSTUNREACH, unix.ENETUNREACH: // routes of type prohibit and unreachable
		return see(oracle.Reject)
	}
	return see(0)
}

// IsErrno reports whether an error is this errno, from a socket or from an ICMP message.
func IsErrno(err error, errno unix.Errno) bool {
	var e *networkError
	return errors.As(err, &e) && e.errno == errno || errors.Is(err, errno)
}

// Concurrently calls f with 0 to n-1, a limited number at a time.
func Concurrently(n int, f func(int)) {
	slots := make(chan struct{}, 32)
	var wg sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			f(i)
		})
	}
	wg.Wait()
}
