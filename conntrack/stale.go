package conntrack

import (
	"iter"
	"net/netip"
	"slices"
)

// stale reports whether a flow is stale (S40, S41).
func (x *index) stale(f Flow) bool {
	if x.isClaimed(f.Destination) {
		if owner := x.owner(f.Destination); owner != nil {
			return !owner.serving.has(f.ReplySource)
		}
		return !x.addressServes(f) && !x.nodePortServes(f)
	}
	if f.rewritten() && x.isGone(f.Destination) {
		return !x.nodePortServes(f)
	}
	if ports, ok := x.nodePorts[f.Destination.Port()]; ok {
		// A flow that is not rewritten and goes to another host only passes through.
		ours := f.rewritten() || slices.Contains(x.nodeAddresses, f.Destination.Addr())
		return ours && !x.nodePortServedBy(ports, f)
	}
	_, gone := x.goneNodePorts[f.Destination.Port()]
	return gone && f.rewritten()
}

// claimants returns the ports with an address and port number. Thousands of services may claim an address, and thousands
// have the same port number, so it iterates over the fewer.
func (x *index) claimants(d netip.AddrPort) iter.Seq[*udpPort] {
	services, ports := x.addresses[d.Addr()], x.numbers[d.Port()]
	return func(yield func(*udpPort) bool) {
		if services.len() > ports.len() {
			for p := range ports.all() {
				if services.has(p.service) && !yield(p) {
					return
				}
			}
			return
		}
		for s := range services.all() {
			for _, p := range s.numbered(d.Port()) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

func (x *index) isClaimed(d netip.AddrPort) bool {
	for range x.claimants(d) {
		return true
	}
	return false
}

// addressServes reports whether a flow goes to an endpoint of any of the ports that claim its destination. Thousands may share
// an endpoint as well.
func (x *index) addressServes(f Flow) bool {
	services, serving := x.addresses[f.Destination.Addr()], x.servedBy[f.ReplySource]
	if serving.len() < min(services.len(), x.numbers[f.Destination.Port()].len()) {
		for p := range serving.all() {
			if p.number == f.Destination.Port() && services.has(p.service) {
				return true
			}
		}
		return false
	}
	for p := range x.claimants(f.Destination) {
		if serving.has(p) {
			return true
		}
	}
	return false
}

// owner returns the port that owns an address or node port, if several claim it and the owner is reported.
func (x *index) owner(d netip.AddrPort) *udpPort {
	name, contested := x.owners[d]
	if !contested {
		return nil
	}
	return x.ports[name]
}

// nodePortServes reports whether a flow is one to a node port, at an address of the node, that has its endpoint. A node
// port and an external IP there have one owner (S59), which is not asked here: stale does that first.
func (x *index) nodePortServes(f Flow) bool {
	ports, ok := x.nodePorts[f.Destination.Port()]
	return ok && slices.Contains(x.nodeAddresses, f.Destination.Addr()) && x.nodePortServedBy(ports, f)
}

// nodePortServedBy reports whether a flow goes to an endpoint of the owner of its node port or, if there is no known
// one, of any of the ports that claim it.
func (x *index) nodePortServedBy(claimants portSet, f Flow) bool {
	if owner := x.owner(netip.AddrPortFrom(netip.Addr{}, f.Destination.Port())); owner != nil {
		return owner.serving.has(f.ReplySource)
	}
	return x.anyServes(claimants, f.ReplySource)
}

// anyServes reports whether any of the ports has a serving endpoint. Thousands of services may claim an address or
// share an endpoint, so it iterates over the smaller set.
func (x *index) anyServes(claimants portSet, target netip.AddrPort) bool {
	serving := x.servedBy[target]
	if claimants.len() < serving.len() {
		claimants, serving = serving, claimants
	}
	for p := range serving.all() {
		if claimants.has(p) {
			return true
		}
	}
	return false
}
