package userspace

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// maxDatagram is at least the size of the largest datagram.
const maxDatagram = 1 << 16

// udpListener forwards datagrams of a frontend. All datagrams from one client address and port are a flow, which has
// one endpoint.
type udpListener struct {
	*net.UDPConn
	listening

	mu     sync.Mutex
	flows  map[netip.AddrPort]*flow
	closed bool
}

type flow struct {
	*slot
	client   netip.AddrPort
	endpoint netip.AddrPort
	server   net.Conn
}

func (l *udpListener) start() { l.family.backend.wg.Go(l.read) }

func (l *udpListener) close() {
	l.listening.close()
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
		fl.touch()
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
	if l.closed || !d.endpoint.IsValid() || b.own.connected(model.UDP, client, l.addr()) {
		return nil
	}
	server, err := b.dial(b.ctx, b.options.tuning.DialTimeout, model.UDP, d)
	if err != nil {
		return nil
	}
	end := func() { _ = server.Close() } // answer then ends the flow
	slot := b.slotFor(b.flows, t.port.name(), client.Addr(), end)
	if slot == nil {
		b.own.disconnect(model.UDP, server)
		_ = server.Close()
		return nil
	}
	fl := &flow{slot: slot, client: client, endpoint: d.endpoint, server: server}
	l.flows[client] = fl
	b.wg.Go(func() { l.answer(fl) })
	return fl
}

// end ends a flow, if it has not ended already. l.mu is held.
func (l *udpListener) end(fl *flow) {
	if l.flows[fl.client] == fl {
		delete(l.flows, fl.client)
	}
	b := l.family.backend
	b.own.disconnect(model.UDP, fl.server)
	_ = fl.server.Close()
	b.flows.release(fl.slot)
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
		idleUntil := fl.lastUsed().Add(b.options.tuning.UDPTimeout)
		_ = fl.server.SetReadDeadline(idleUntil)
		err := b.receive(fl.server, func(buffer []byte) error {
			n, err := fl.server.Read(buffer)
			if err == nil {
				fl.touch()
				_, _ = l.WriteToUDPAddrPort(buffer[:n], fl.client)
			}
			return err
		})
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case errors.Is(err, os.ErrDeadlineExceeded) &&
			time.Since(fl.lastUsed()) >= b.options.tuning.UDPTimeout:
			return
		}
		// Any other error is an ICMP error about an earlier datagram, or the flow has been used in the meantime.
	}
}
