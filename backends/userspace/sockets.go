package userspace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// socket is what [net.TCPListener] and [net.UDPConn] have in common.
type socket interface {
	File() (*os.File, error)
	Close() error
}

// socketKey is the protocol and local address of a listening socket.
type socketKey struct {
	protocol model.Protocol
	addr     netip.AddrPort
}

// listener serves a frontend at one address.
type listener interface {
	// point sets another target for new connections.
	point(target)
	target() target
	start()
	socket() socket
	addr() netip.AddrPort
	// close stops listening. TCP connections continue; UDP flows end.
	close()
}

// listening is what listeners of both protocols have.
type listening struct {
	family *family
	conn   socket
	at     netip.AddrPort
	to     atomic.Pointer[target]
}

func (l *listening) point(t target)       { l.to.Store(&t) }
func (l *listening) target() target       { return *l.to.Load() }
func (l *listening) socket() socket       { return l.conn }
func (l *listening) addr() netip.AddrPort { return l.at }
func (l *listening) close()               { _ = l.conn.Close() }

// open starts to serve a frontend at the first of some addresses that an inherited socket has, or else at the first
// that is free.
func (f *family) open(ctx context.Context, t target, addresses []netip.AddrPort) (listener, error) {
	s := f.backend.inheritedAt(t.frontend.Protocol, addresses)
	if s == nil {
		var err error
		if s, err = f.bind(ctx, t.frontend.Protocol, addresses); err != nil {
			return nil, err
		}
	}
	var l listener
	switch s := s.(type) {
	case *net.UDPConn:
		l = &udpListener{UDPConn: s, listening: listening{family: f, conn: s, at: addrPort(s.LocalAddr())},
			flows: map[netip.AddrPort]*flow{}}
	case *net.TCPListener:
		l = &tcpListener{TCPListener: s, listening: listening{family: f, conn: s, at: addrPort(s.Addr())}}
	}
	l.point(t)
	f.backend.own.listen(t.frontend.Protocol, l.addr())
	l.start()
	return l, nil
}

// inheritedAt takes the inherited socket of the first of some addresses that has one. It returns nil if none has.
func (b *Backend) inheritedAt(p model.Protocol, addresses []netip.AddrPort) socket {
	for _, at := range addresses {
		key := socketKey{p, at}
		if s, ok := b.inherited[key]; ok {
			delete(b.inherited, key)
			return s
		}
	}
	return nil
}

// bind opens a listening socket at the first of some addresses that is free.
func (f *family) bind(ctx context.Context, p model.Protocol, addresses []netip.AddrPort) (s socket, _ error) {
	var errs []error
	for _, at := range addresses {
		err := f.backend.options.Open(func() (err error) {
			s, err = f.backend.bind(ctx, socketKey{p, at})
			return err
		})
		if err == nil {
			return s, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// bind opens a listening socket.
func (b *Backend) bind(ctx context.Context, key socketKey) (socket, error) {
	var config net.ListenConfig
	if c, ok := b.options.Addresses.(interface {
		Control(network, address string, c syscall.RawConn) error
	}); ok {
		config.Control = c.Control
	}
	if key.protocol == model.UDP {
		conn, err := config.ListenPacket(ctx, "udp", key.addr.String())
		if err != nil {
			return nil, err
		}
		return conn.(*net.UDPConn), nil
	}
	l, err := config.Listen(ctx, "tcp", key.addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// inherit takes over sockets of an earlier process.
func inherit(files []*os.File) (map[socketKey]socket, error) {
	sockets := map[socketKey]socket{}
	var errs []error
	for _, file := range files {
		key, s, err := fromFile(file)
		_ = file.Close() // the socket is a duplicate
		if err != nil {
			errs = append(errs, fmt.Errorf("inherited socket %s: %w", file.Name(), err))
			continue
		}
		sockets[key] = s
	}
	if len(errs) > 0 {
		for _, s := range sockets {
			_ = s.Close()
		}
		return nil, errors.Join(errs...)
	}
	return sockets, nil
}

func fromFile(file *os.File) (socketKey, socket, error) {
	if l, err := net.FileListener(file); err == nil {
		if l, ok := l.(*net.TCPListener); ok {
			return socketKey{model.TCP, addrPort(l.Addr())}, l, nil
		}
		_ = l.Close()
	}
	c, err := net.FilePacketConn(file)
	if err != nil {
		return socketKey{}, nil, err
	}
	conn, ok := c.(*net.UDPConn)
	if !ok {
		_ = c.Close()
		return socketKey{}, nil, errors.New("neither TCP nor UDP")
	}
	return socketKey{model.UDP, addrPort(conn.LocalAddr())}, conn, nil
}

// closeInherited closes the inherited sockets of some families that were not needed.
func (b *Backend) closeInherited(families ...model.Family) {
	for key, s := range b.inherited {
		if slices.Contains(families, model.FamilyOf(key.addr.Addr())) {
			_ = s.Close()
			delete(b.inherited, key)
		}
	}
}

// addrPort converts the address of a TCP or UDP socket.
func addrPort(a net.Addr) netip.AddrPort {
	var ap netip.AddrPort
	switch a := a.(type) {
	case *net.TCPAddr:
		ap = a.AddrPort()
	case *net.UDPAddr:
		ap = a.AddrPort()
	}
	return netip.AddrPortFrom(ap.Addr().Unmap().WithZone(""), ap.Port())
}

// Listener is an address at which a frontend is served.
type Listener struct {
	Port     model.PortName    // the owner of the frontend
	Frontend frontend.Frontend // of a node port, with one of its addresses
	Addr     netip.AddrPort    // where the socket is bound, which Options.Addresses may have chosen
}

// Listeners returns what is served at present, sorted by service port.
func (b *Backend) Listeners() []Listener {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Listener
	for _, f := range b.families {
		for _, l := range f.listeners {
			t := l.target()
			list = append(list, Listener{Port: t.port.name(), Frontend: t.frontend, Addr: l.addr()})
		}
	}
	slices.SortFunc(list, func(a, b Listener) int {
		if c := a.Port.Compare(b.Port); c != 0 {
			return c
		}
		return a.Frontend.Key.Compare(b.Frontend.Key)
	})
	return list
}

// Sockets returns duplicates of all listening sockets, for [Options.Sockets] of the next process. The caller has to
// close them. It fails on Windows.
func (b *Backend) Sockets() ([]*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var files []*os.File
	for _, f := range b.families {
		for _, l := range f.listeners {
			file, err := l.socket().File()
			if err != nil {
				for _, file := range files {
					_ = file.Close()
				}
				return nil, fmt.Errorf("userspace: socket %v: %w", l.addr(), err)
			}
			files = append(files, file)
		}
	}
	return files, nil
}
