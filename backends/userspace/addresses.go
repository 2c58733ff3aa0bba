package userspace

import (
	"context"
	"hash/fnv"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Addresses makes traffic to service addresses reach this process. Its methods are called from one goroutine at a time.
// An optional method Control, with the signature of net.ListenConfig.Control, is called for each listening socket.
type Addresses interface {
	// ListenOn returns the addresses to listen on for a frontend; the first is used that a socket of an earlier process
	// has, or else the first that is free. Without any, the frontend is not served. It is called for each address of a
	// node port. Port 0 is any free port; a socket that has one is not found again after a restart.
	ListenOn(fr frontend.Frontend) []netip.AddrPort
	// Update makes packets to the addresses in add reach this process, and packets to those in remove no longer. It has
	// to be idempotent. If full is set, add has all addresses, and those left by an earlier process have to be removed.
	// It should not stop at an address that fails. After an error the family counts as failed, though its frontends are
	// served where possible, and Update is called again with the same addresses.
	Update(ctx context.Context, f model.Family, full bool, add, remove []netip.Addr) error
}

// Existing is for service addresses that the host already has. A frontend with another address is a [sink.PortError].
type Existing struct{}

// ListenOn implements [Addresses].
func (Existing) ListenOn(fr frontend.Frontend) []netip.AddrPort { return own(fr) }

// Update implements [Addresses].
func (Existing) Update(context.Context, model.Family, bool, []netip.Addr, []netip.Addr) error {
	return nil
}

func own(fr frontend.Frontend) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(fr.Addr, fr.Port)}
}

// Localhost serves each port of a cluster IP on a port of 127.0.0.1 or ::1. Its number is derived from the cluster IP,
// port and protocol, so it is the same after a restart. If another program or service uses that number, up to seven
// more derived numbers are tried, and then any free one. A restart may change such a number, and one that two services
// derive. External IPs and VIPs are not served. Node ports keep their number, and are served on loopback addresses
// only: see [Options.LocalhostNodePorts].
type Localhost struct{}

// Ports are mapped to numbers below the ephemeral ports of every common system, and below node ports.
const firstMapped, numMapped, mappedTries = 20000, 10000, 8

// ListenOn implements [Addresses].
func (Localhost) ListenOn(fr frontend.Frontend) []netip.AddrPort {
	loopback := netip.IPv6Loopback()
	if fr.Addr.Is4() {
		loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	switch {
	case fr.Kind == frontend.NodePort && fr.Addr.IsLoopback():
		return own(fr)
	case fr.Kind != frontend.ClusterIP:
		return nil
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(fr.Key.String()))
	addresses := make([]netip.AddrPort, 0, mappedTries+1)
	for range mappedTries {
		addresses = append(addresses, netip.AddrPortFrom(loopback, firstMapped+uint16(h.Sum32()%numMapped)))
		_, _ = h.Write([]byte{0})
	}
	return append(addresses, netip.AddrPortFrom(loopback, 0))
}

// Update implements [Addresses].
func (Localhost) Update(context.Context, model.Family, bool, []netip.Addr, []netip.Addr) error {
	return nil
}
