package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// flow is a connection to be tried: what the oracle is asked about, and the place where it really starts.
type flow struct {
	oracle.Flow
	from place
	// about describes the flow in the words of the case, for messages.
	about string
	// ports is where the source port comes from; zero: anywhere.
	ports portBand
}

func (f flow) String() string {
	if f.about == "" {
		return f.Flow.String()
	}
	return fmt.Sprintf("%v (%s)", f.Flow, f.about)
}

// seen is what happened to a flow. Verdict is NotOurs for packets that left the node unchanged.
type seen struct {
	oracle.Observation
	// detail describes what was seen, for messages.
	detail string
	// accepted: the refusal came after the connection had been accepted.
	accepted bool
	// lost: a packet was lost and sent again.
	lost bool
	// port is the client's, or 0.
	port uint16
	// broken is an error of the test network itself.
	broken error
}

func (s seen) String() string {
	if s.port != 0 {
		return fmt.Sprintf("%s, from port %d", s.outcome(), s.port)
	}
	return s.outcome()
}

func (s seen) outcome() string {
	switch {
	case s.broken != nil:
		return fmt.Sprintf("the test itself failed: %v", s.broken)
	case s.Verdict == oracle.NotOurs:
		return "left the node unchanged: " + s.detail
	case s.Verdict == 0:
		return "something else: " + s.detail
	case s.accepted:
		return fmt.Sprintf("%v after the connection was accepted: %s", s.Observation, s.detail)
	case s.detail != "":
		return fmt.Sprintf("%v: %s", s.Observation, s.detail)
	}
	return s.Observation.String()
}

// patience is how long to wait for what.
type patience struct {
	// answer is how long an answer, or a refusal, may take before a flow counts as dropped.
	answer time.Duration
	// quiet is how long to wait for an answer where a drop is right.
	quiet time.Duration
	// repair is how long a backend that repairs itself may take.
	repair time.Duration
	// shrink is how long the events that led to a failure may be reduced.
	shrink time.Duration
}

var defaultPatience = patience{
	answer: 10 * time.Second, quiet: 100 * time.Millisecond, repair: 30 * time.Second, shrink: 45 * time.Second,
}

// patienceHere is the default, multiplied by KPL_PATIENCE if that is set, for emulated machines such as those of
// testing/vm. Only failures take longer then.
func patienceHere() (patience, error) {
	p := defaultPatience
	if value := os.Getenv("KPL_PATIENCE"); value != "" {
		factor, err := strconv.Atoi(value)
		if err != nil || factor < 1 {
			return p, fmt.Errorf("KPL_PATIENCE=%s is not a number above 0", value)
		}
		p.answer *= time.Duration(factor)
		p.repair *= time.Duration(factor)
	}
	return p, nil
}

// connection is a client's side of a connection.
type connection struct {
	flow  flow
	local netip.AddrPort
	sock  *socket
	n     *network
	asked int
	lost  bool // a datagram had to be sent again
}

// open opens a connection. For TCP it waits until it is established; the others send nothing yet. A connection that
// fails is returned too, closed, if a port was found for it.
func (n *network) open(f flow, deadline time.Time) (*connection, error) {
	c := &connection{flow: f, n: n}
	ns := n.namespaceOf(f.from)
	for attempt := 0; ; attempt++ {
		band := f.ports
		if band == (portBand{}) {
			band = anyPort
		}
		port, err := n.ports.take(f.Source, f.Destination, f.Protocol, band)
		if err != nil {
			return nil, err
		}
		c.local = netip.AddrPortFrom(f.Source, port)
		kind, bind := kindOf(f.Protocol), c.local
		if n.rawSCTP(f) {
			kind, bind = unix.SOCK_RAW, netip.AddrPortFrom(f.Source, 0)
		}
		c.sock, err = newSocket(ns, kind, int(f.Protocol), bind)
		if err == nil {
			break
		}
		if !isErrno(err, unix.EADDRINUSE) || attempt == 100 {
			return nil, brokenError{fmt.Errorf("client in %s: %w", ns.name, err)}
		}
	}
	to := f.Destination
	if n.rawSCTP(f) {
		c.sock.mine = sentFrom(c.local.Port())
		to = netip.AddrPortFrom(to.Addr(), 0)
	}
	if err := c.sock.connect(to, deadline); err != nil {
		c.close()
		return c, err
	}
	return c, nil
}

// rawSCTP reports whether a flow goes over a raw socket.
func (n *network) rawSCTP(f flow) bool { return f.Protocol == model.SCTP && n.sctp == userSpaceSCTP }

func (c *connection) close() { c.sock.close() }

// resendAfter is the time after which an unanswered datagram is sent again: if many flows begin at once, the kernel may
// drop one whose translated ports another one has just taken.
const resendAfter = 500 * time.Millisecond

// ask asks who is at the other end.
func (c *connection) ask(deadline time.Time) (answer, error) { return c.askLong(0, deadline) }

// askLong asks with a question of at least that many bytes. The answer repeats all of it.
func (c *connection) askLong(size int, deadline time.Time) (answer, error) {
	c.asked++
	question := fmt.Sprintf("kpl-%d", c.asked)
	if missing := size - len(question) - len("-\n"); missing > 0 {
		question += "-" + filling(missing)
	}
	for {
		until := deadline
		if again := time.Now().Add(resendAfter); c.flow.Protocol != model.TCP && again.Before(until) {
			until = again
		}
		a, err := c.askOnce(question, until)
		if !errors.Is(err, os.ErrDeadlineExceeded) || until.Equal(deadline) {
			return a, err
		}
		c.lost = true
	}
}

// filling returns a text of a length, which makes questions long. No two parts of it are the same.
func filling(size int) string {
	var b strings.Builder
	for i := 0; b.Len() < size; i++ {
		fmt.Fprintf(&b, "%d.", i)
	}
	return b.String()[:size]
}

// askOnce sends the question, and waits for the answer to it.
func (c *connection) askOnce(question string, deadline time.Time) (answer, error) {
	if c.n.rawSCTP(c.flow) {
		return askUserSpaceSCTP(c.sock, c.local.Port(), c.flow.Destination, uint32(c.local.Port())<<16|uint32(c.asked),
			deadline)
	}
	// EPERM: a packet filter on output has dropped the packet. Its ICMP error, if any, arrives separately.
	if err := c.sock.send([]byte(question + "\n")); err != nil && !isErrno(err, unix.EPERM) {
		return answer{}, err
	}
	buf := make([]byte, 256+len(question))
	for {
		n, err := c.sock.receive(buf, deadline)
		if err != nil {
			return answer{}, err
		}
		if n == 0 {
			return answer{}, errors.New("the other end closed the connection")
		}
		a, err := decodeAnswer(buf[:n])
		if err != nil {
			return answer{}, garbledError{err}
		}
		// An answer to an earlier question may still be under way.
		if a.echo == question {
			return a, nil
		}
	}
}

// brokenError is an error of the test network, not of the backend.
type brokenError struct{ error }

func (e brokenError) Unwrap() error { return e.error }

// garbledError says that the answer is not from a server of the test network.
type garbledError struct{ error }

// attempt is a flow to be tried.
type attempt struct {
	flow
	// dropIsRight shortens the wait to patience.quiet.
	dropIsRight bool
}

// try makes one new connection, asks who is there, and closes it.
func (n *network) try(f attempt, p patience) seen {
	if n.forward != nil {
		return n.simulate(f)
	}
	wait := p.answer
	if f.dropIsRight {
		wait = p.quiet
	}
	c, err := n.open(f.flow, time.Now().Add(wait))
	if c == nil {
		return classify(err, wait)
	}
	defer c.close()
	var a answer
	if err == nil {
		a, err = c.ask(time.Now().Add(wait))
	}
	if err != nil {
		s := classify(err, wait)
		s.port = c.local.Port()
		return s
	}
	s := seen{Observation: oracle.Observation{Verdict: oracle.Deliver, Endpoint: a.server, Source: a.client.Addr()},
		lost: c.lost, port: c.local.Port()}
	if f.Protocol == model.TCP {
		if repeated, err := c.sock.retransmissions(); err == nil && repeated > 0 {
			s.lost = true
		}
	}
	return s
}

// classify says what an error means for the flow. Any error may be the backend's fault, except errors of the test's own
// sockets before anything was sent.
func classify(err error, waited time.Duration) seen {
	var network *networkError
	var broken brokenError
	var garbled garbledError
	see := func(v oracle.Verdict) seen {
		return seen{Observation: oracle.Observation{Verdict: v}, detail: err.Error()}
	}
	switch {
	case errors.As(err, &broken):
		return seen{broken: err}
	case errors.Is(err, os.ErrDeadlineExceeded):
		s := see(oracle.Drop)
		s.detail = fmt.Sprintf("nothing came within %v", waited)
		return s
	case errors.As(err, &garbled):
		return see(0)
	case !errors.As(err, &network):
		return see(oracle.Drop)
	case network.icmp && outsideAddr(network.from),
		// SCTP sockets of the kernel do not tell the sender of an error. Only the router outside sends this one.
		!network.icmp && !network.localCause && network.errno == unix.ENETUNREACH:
		return see(oracle.NotOurs)
	case network.icmp, network.errno == unix.ECONNREFUSED:
		return see(oracle.Reject)
	}
	switch network.errno {
	case unix.ECONNRESET, unix.EPIPE:
		s := see(oracle.Reject)
		s.accepted = true
		return s
	case unix.EINVAL: // the error that the node's own processes get from a blackhole route
		return see(oracle.Drop)
	case unix.EACCES, unix.EPERM, unix.EHOSTUNREACH, unix.ENETUNREACH: // routes of type prohibit and unreachable
		return see(oracle.Reject)
	}
	return see(0)
}

func isErrno(err error, errno unix.Errno) bool {
	var e *networkError
	return errors.As(err, &e) && e.errno == errno || errors.Is(err, errno)
}

// parallel is how many connections are tried at the same time.
const parallel = 32

// tryAll tries flows concurrently, and returns the results in their order. It stops when ctx ends.
func (n *network) tryAll(ctx context.Context, flows []attempt, p patience) []seen {
	result := make([]seen, len(flows))
	slots := make(chan struct{}, parallel)
	var wg sync.WaitGroup
	for i, f := range flows {
		if err := ctx.Err(); err != nil {
			result[i] = seen{broken: err}
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			result[i] = n.try(f, p)
		})
	}
	wg.Wait()
	return result
}

// indent puts a text under a heading.
func indent(text string) string {
	return "    " + strings.ReplaceAll(strings.TrimRight(text, "\n"), "\n", "\n    ")
}
