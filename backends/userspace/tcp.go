package userspace

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// tcpListener accepts the connections to a frontend.
type tcpListener struct {
	*net.TCPListener
	listening
}

func (l *tcpListener) start() { l.family.backend.traffic.Go(l.accept) }

// acceptPause is the pause after a failure to accept, which usually means that file descriptors have run out.
const acceptPause = 50 * time.Millisecond

// minIdle is how long a connection must be idle before one of its namespace that has no better claim may take its
// place. The time of its last data is known to within checkPause.
const minIdle = 2 * checkPause

func (l *tcpListener) accept() {
	b := l.family.backend
	for {
		conn, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if b.acceptErrors.due(time.Now()) {
				klog.FromContext(b.ctx).Error(err, "Cannot accept connections", "address", l.addr())
			}
			select {
			case <-time.After(acceptPause):
			case <-b.ctx.Done():
			}
			continue
		}
		ctx, cancel := context.WithCancel(b.ctx)
		t, client := l.target(), addrPort(conn.RemoteAddr())
		slot := b.slotFor(b.connections, t.port.name(), client.Addr(), cancel)
		if slot == nil || b.own.connected(model.TCP, client, addrPort(conn.LocalAddr())) {
			cancel()
			reset(conn)
			if slot != nil {
				b.connections.release(slot)
			}
			continue
		}
		b.traffic.Go(func() {
			defer b.connections.release(slot)
			defer cancel()
			l.serve(ctx, conn, t, slot)
		})
	}
}

// dialAttempts is the number of attempts to connect to an endpoint, each to another one.
const dialAttempts = 3

// serve serves one connection until it ends, or ctx does.
func (l *tcpListener) serve(ctx context.Context, client *net.TCPConn, t target, slot *slot) {
	b := l.family.backend
	stop := context.AfterFunc(ctx, func() { reset(client) })
	defer stop()
	from := l.family.source(addrPort(client.RemoteAddr()).Addr(), t.frontend)
	var tried []netip.AddrPort
	for len(tried) < dialAttempts && ctx.Err() == nil {
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
		timeout := b.options.tuning.DialTimeout
		if tried = append(tried, d.endpoint); !d.last && len(tried) < dialAttempts {
			timeout /= 5 // others may answer sooner
		}
		server, err := b.dial(ctx, timeout, model.TCP, d)
		if err != nil {
			if isFaultOfEndpoint(err) {
				t.port.markDead(d.endpoint, from.addr)
			}
			continue
		}
		t.port.connected(d.endpoint)
		stop := context.AfterFunc(ctx, func() { reset(server) })
		defer stop()
		defer b.own.disconnect(model.TCP, server)
		t.port.connections.Add(1)
		defer t.port.connections.Add(-1)
		b.newRelay(client, server, slot).run()
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
