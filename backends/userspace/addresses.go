package userspace

import (
	"context"
	"hash/fnv"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Addresses is how traffic to service addresses gets to this process. Its methods are called from one goroutine at a
// time. If it has a method Control, as net.ListenConfig has it, that is called for each listening socket.
type Addresses interface {
	// ListenOn returns where to listen for the traffic to a frontend: the first of these that is free; none means that
	// the frontend is not served. A node port is asked for with each of its addresses. Port 0 is any free port.
	ListenOn(fr frontend.Frontend) []netip.AddrPort
	// Update makes packets to the addresses in add reach this process, and those to the ones in remove no longer. It
	// may be told the same again. With full, add has all addresses, and any that an earlier process left has to go.
	Update(ctx context.Context, f model.Family, full bool, add, remove []netip.Addr) error
}

// Given is for service addresses that the host has anyhow. A frontend on another address is a [sink.PortError].
type Given struct{}

// ListenOn implements [Addresses].
func (Given) ListenOn(fr frontend.Frontend) []netip.AddrPort { return own(fr) }

// Update implements [Addresses].
func (Given) Update(context.Context, model.Family, bool, []netip.Addr, []netip.Addr) error {
	return nil
}

func own(fr frontend.Frontend) []netip.AddrPort {
	return []netip.AddrPort{netip.AddrPortFrom(fr.Addr, fr.Port)}
}

// Localhost serves each port of a cluster IP on a port of 127.0.0.1 or ::1. Its number follows from the cluster IP,
// port and protocol, so that it is the same after a restart, unless another program has it. External IPs and VIPs are
// not served. Node ports keep their number, on loopback addresses alone: see [Options.LocalhostNodePorts].
type Localhost struct{}

// The numbers that ports are mapped to lie below the ephemeral ones of every common system, and below node ports.
const firstMapped, numMapped = 20000, 10000

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
	return []netip.AddrPort{netip.AddrPortFrom(loopback, firstMapped+uint16(h.Sum32()%numMapped)),
		netip.AddrPortFrom(loopback, 0)}
}

// Update implements [Addresses].
func (Localhost) Update(context.Context, model.Family, bool, []netip.Addr, []netip.Addr) error {
	return nil
}
