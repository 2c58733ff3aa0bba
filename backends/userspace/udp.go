package userspace

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// maxDatagram is at least the size of the largest datagram.
const maxDatagram = 1 << 16

// udpListener forwards datagrams of a frontend. All datagrams from one client address and port are a flow, which has
// one endpoint.
type udpListener struct {
	*net.UDPConn
	family *family
	to     atomic.Pointer[target]

	mu     sync.Mutex
	flows  map[netip.AddrPort]*flow
	closed bool
}

type flow struct {
	client   netip.AddrPort
	endpoint netip.AddrPort
	server   net.Conn
	used     atomic.Int64 // last use, in Unix nanoseconds
	share    *share       // of its port
}

func (f *family) serveUDP(conn *net.UDPConn, t target) *udpListener {
	s := &udpListener{UDPConn: conn, family: f, flows: map[netip.AddrPort]*flow{}}
	s.to.Store(&t)
	f.backend.wg.Go(s.read)
	return s
}

func (l *udpListener) point(t target)       { l.to.Store(&t) }
func (l *udpListener) target() target       { return *l.to.Load() }
func (l *udpListener) socket() socket       { return l.UDPConn }
func (l *udpListener) addr() netip.AddrPort { return addrPort(l.LocalAddr()) }
func (l *udpListener) forsake()             {}

func (l *udpListener) close() {
	_ = l.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, fl := range l.flows {
		l.end(fl)
	}
}

// read forwards datagrams of clients until the socket is closed.
func (l *udpListener) read() {
	for {
		err := l.family.backend.receive(l.UDPConn, func(b []byte) error {
			n, client, err := l.ReadFromUDPAddrPort(b)
			if err == nil {
				l.forward(netip.AddrPortFrom(client.Addr().Unmap(), client.Port()), b[:n])
			}
			return err
		})
		if errors.Is(err, net.ErrClosed) {
			return
		}
		// Any other error is an ICMP error about an earlier answer.
	}
}

// receive waits for a datagram, and then calls read with a buffer, so that no buffer is held while waiting.
func (b *Backend) receive(conn net.Conn, read func([]byte) error) error {
	if c, ok := conn.(syscall.Conn); ok {
		raw, err := c.SyscallConn()
		if err == nil {
			err = awaitDatagram(raw)
		}
		if err != nil {
			return err
		}
	}
	buffer := b.buffers.Get().(*[maxDatagram]byte)
	defer b.buffers.Put(buffer)
	return read(buffer[:])
}

// forward sends a client's datagram to the endpoint of its flow, which may be a new one.
func (l *udpListener) forward(client netip.AddrPort, datagram []byte) {
	t := l.target()
	l.mu.Lock()
	defer l.mu.Unlock()
	fl := l.flows[client]
	if fl != nil && t.port.serves(fl.endpoint) {
		fl.used.Store(time.Now().UnixNano())
		if _, err := fl.server.Write(datagram); !errors.Is(err, net.ErrClosed) {
			return // any other error is about an earlier datagram
		}
	}
	if fl != nil {
		l.end(fl)
	}
	if fl = l.begin(client, t); fl != nil {
		_, _ = fl.server.Write(datagram)
	}
}

// begin starts a flow, or returns nil if the datagram is to be dropped. l.mu is held.
func (l *udpListener) begin(client netip.AddrPort, t target) *flow {
	b := l.family.backend
	d := t.port.decide(t.frontend, l.family.source(client.Addr(), t.frontend))
	if l.closed || !d.endpoint.IsValid() {
		return nil
	}
	server, err := b.dial("udp", d)
	if err != nil {
		return nil
	}
	fl := &flow{client: client, endpoint: d.endpoint, server: server}
	fl.used.Store(time.Now().UnixNano())
	l.flows[client] = fl
	b.addFlow(fl, t.port.name())
	b.wg.Go(func() { l.answer(fl) })
	return fl
}

// end ends a flow, if it has not ended already. l.mu is held.
func (l *udpListener) end(fl *flow) {
	if l.flows[fl.client] == fl {
		delete(l.flows, fl.client)
	}
	_ = fl.server.Close()
	l.family.backend.removeFlow(fl)
}

// evictFrom is the number of flows, or of clients with affinity, among which a victim is looked for when there are too
// many.
const evictFrom = 16

// addFlow adds a flow of a port. At the limit it first ends another one.
func (b *Backend) addFlow(fl *flow, port model.PortName) {
	b.flowsMu.Lock()
	defer b.flowsMu.Unlock()
	for len(b.flows) >= b.options.tuning.MaxFlows {
		victim := b.victim()
		if b.replaced.due(time.Now()) {
			klog.FromContext(b.ctx).Info("New flows replace others: the limit is reached", "port", port,
				"replaced", victim.share.port, "limit", b.options.tuning.MaxFlows)
		}
		_ = victim.server.Close() // its answer goroutine then ends it
		b.dropFlow(victim)
	}
	fl.share = b.flowShares.get(port)
	fl.share.add(1)
	b.flows[fl] = true
}

// victim returns a flow of the namespace with most flows, of its port with most flows, the one idle for longest: among
// a few, because to look at all of them would make every new flow slow.
func (b *Backend) victim() *flow {
	var victim *flow
	seen := 0
	for fl := range b.flows {
		if victim == nil || cmp.Or(cmp.Compare(fl.share.namespace.taken, victim.share.namespace.taken),
			cmp.Compare(fl.share.taken, victim.share.taken), cmp.Compare(victim.used.Load(), fl.used.Load())) > 0 {
			victim = fl
		}
		if seen++; seen == evictFrom {
			break
		}
	}
	return victim
}

func (b *Backend) removeFlow(fl *flow) {
	b.flowsMu.Lock()
	defer b.flowsMu.Unlock()
	b.dropFlow(fl)
}

// dropFlow forgets a flow, unless it is forgotten. b.flowsMu is held.
func (b *Backend) dropFlow(fl *flow) {
	if !b.flows[fl] {
		return
	}
	delete(b.flows, fl)
	fl.share.add(-1)
	b.flowShares.put(fl.share)
}

// answer sends the endpoint's datagrams back until the flow ends or has been idle for too long.
func (l *udpListener) answer(fl *flow) {
	b := l.family.backend
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.end(fl)
	}()
	for {
		idleUntil := time.Unix(0, fl.used.Load()).Add(b.options.tuning.UDPTimeout)
		_ = fl.server.SetReadDeadline(idleUntil)
		err := b.receive(fl.server, func(buffer []byte) error {
			n, err := fl.server.Read(buffer)
			if err == nil {
				fl.used.Store(time.Now().UnixNano())
				_, _ = l.WriteToUDPAddrPort(buffer[:n], fl.client)
			}
			return err
		})
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, os.ErrDeadlineExceeded) &&
			time.Since(time.Unix(0, fl.used.Load())) >= b.options.tuning.UDPTimeout:
			return
		}
		// Any other error is an ICMP error about an earlier datagram, or the flow has been used in the meantime.
	}
}
