package userspace

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// tcpListener accepts the connections to a frontend.
type tcpListener struct {
	*net.TCPListener
	family *family
	to     atomic.Pointer[target]
	wait   atomic.Pointer[wait]
}

// wait is a wait for a place, which can be cancelled.
type wait struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (f *family) serveTCP(l *net.TCPListener, t target) *tcpListener {
	s := &tcpListener{TCPListener: l, family: f}
	s.wait.Store(f.backend.newWait())
	s.to.Store(&t)
	f.backend.traffic.Go(s.accept)
	return s
}

func (b *Backend) newWait() *wait {
	ctx, cancel := context.WithCancel(b.ctx)
	return &wait{ctx, cancel}
}

// point also has a connection that waits for a place of another port wait for one of this port.
func (l *tcpListener) point(t target) {
	if before := l.to.Swap(&t); before.port != t.port {
		l.wait.Swap(l.family.backend.newWait()).cancel()
	}
}

func (l *tcpListener) target() target       { return *l.to.Load() }
func (l *tcpListener) socket() socket       { return l.TCPListener }
func (l *tcpListener) addr() netip.AddrPort { return addrPort(l.Addr()) }
func (l *tcpListener) close()               { _ = l.Close() }
func (l *tcpListener) forsake()             { l.wait.Load().cancel() }

// acceptPause is the pause after a failure to accept, which usually means that file descriptors have run out.
const acceptPause = 50 * time.Millisecond

// logPause is the time between log lines about what all listeners find out at the same time.
const logPause = 10 * time.Second

// seldom tells when something may be logged again.
type seldom struct{ last atomic.Int64 } // Unix nanoseconds

func (s *seldom) due(now time.Time) bool {
	last := s.last.Load()
	return now.Sub(time.Unix(0, last)) >= logPause && s.last.CompareAndSwap(last, now.UnixNano())
}

func (l *tcpListener) accept() {
	defer l.forsake()
	b := l.family.backend
	for {
		conn, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if b.unaccepted.due(time.Now()) {
				klog.FromContext(b.ctx).Error(err, "Cannot accept connections", "address", l.addr())
			}
			select {
			case <-time.After(acceptPause):
			case <-b.ctx.Done():
			}
			continue
		}
		place := l.takePlace()
		if place == nil {
			reset(conn)
			continue
		}
		b.traffic.Go(func() {
			defer b.connections.release(place)
			l.serve(conn)
		})
	}
}

// takePlace takes a place for a connection. It returns nil if the listener closes before there is one.
func (l *tcpListener) takePlace() *share {
	b := l.family.backend
	for {
		wait := l.wait.Load()
		port := l.target().port.name()
		if place := b.connections.tryTake(port); place != nil {
			return place
		}
		if b.waiting.due(time.Now()) {
			klog.FromContext(b.ctx).Info("New connections wait until others end: the limit is reached", "port", port,
				"limit", b.options.tuning.MaxConnections)
		}
		if place := b.connections.take(wait.ctx, port); place != nil || wait == l.wait.Load() {
			return place
		}
	}
}

// dialAttempts is the number of attempts to connect to an endpoint, each to another one if there are so many.
const dialAttempts = 3

// serve serves one connection until it ends.
func (l *tcpListener) serve(client *net.TCPConn) {
	b := l.family.backend
	stop := context.AfterFunc(b.ctx, func() { reset(client) })
	defer stop()
	t := l.target()
	from := l.family.source(addrPort(client.RemoteAddr()).Addr(), t.frontend)
	var tried []netip.AddrPort
	for len(tried) < dialAttempts && b.ctx.Err() == nil {
		d := t.port.decide(t.frontend, from, tried...)
		switch {
		case d.endpoint.IsValid():
		case d.verdict == model.Drop:
			b.hold(client)
			return
		default:
			reset(client)
			return
		}
		server, err := b.dial("tcp", d)
		if err != nil {
			tried = append(tried, d.endpoint)
			continue
		}
		stop := context.AfterFunc(b.ctx, func() { reset(server) })
		defer stop()
		t.port.connections.Add(1)
		defer t.port.connections.Add(-1)
		b.newRelay(client, server).run()
		return
	}
	reset(client)
}

// holdTime is how long a connection that is to be dropped stays open without an answer.
const holdTime = time.Minute

// holdBytes is how much such a connection may send: reading it costs processor time.
const holdBytes = 1 << 16

// hold does not answer until the client gives up, has sent holdBytes, or holdTime has passed. When an eighth of all
// connections is held, others are reset at once: clients that are not let in must not use up the connections of those
// that are.
func (b *Backend) hold(client *net.TCPConn) {
	select {
	case b.held <- struct{}{}:
		_ = client.SetDeadline(time.Now().Add(holdTime))
		_, _ = io.CopyN(io.Discard, client, holdBytes)
		<-b.held
	default:
	}
	reset(client)
}
