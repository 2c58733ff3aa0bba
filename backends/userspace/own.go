package userspace

import (
	"net"
	"net/netip"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// ownSockets are the sockets of a backend that it must not talk to: its listeners, when it connects to an endpoint, and
// its connections to endpoints, when it accepts one. An EndpointSlice can name any address, also one of its own
// Service.
type ownSockets struct {
	listeners   sync.Map // socketKey
	connections sync.Map // connection
}

// connection is a connection from this backend to an endpoint.
type connection struct {
	protocol model.Protocol
	from, to netip.AddrPort
}

func connectionOf(p model.Protocol, c net.Conn) connection {
	return connection{p, addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())}
}

func (o *ownSockets) listen(p model.Protocol, at netip.AddrPort) {
	o.listeners.Store(socketKey{p, at}, true)
}

func (o *ownSockets) stopListening(p model.Protocol, at netip.AddrPort) {
	o.listeners.Delete(socketKey{p, at})
}

func (o *ownSockets) listensAt(p model.Protocol, at netip.AddrPort) bool {
	_, ok := o.listeners.Load(socketKey{p, at})
	return ok
}

func (o *ownSockets) connect(p model.Protocol, c net.Conn) {
	o.connections.Store(connectionOf(p, c), true)
}
func (o *ownSockets) disconnect(p model.Protocol, c net.Conn) {
	o.connections.Delete(connectionOf(p, c))
}

// connected reports whether what comes from an address, to another one, comes from this backend.
func (o *ownSockets) connected(p model.Protocol, from, to netip.AddrPort) bool {
	_, ok := o.connections.Load(connection{p, from, to})
	return ok
}
