package conntrack

import (
	"net/netip"
	"slices"
)

// stale reports whether a flow is stale (S40, S41).
func (x *index) stale(f Flow) bool {
	if ports, ok := x.addresses[f.Destination]; ok {
		if owner := x.owner(f.Destination); owner != nil {
			return !owner.serving.has(f.ReplySource)
		}
		return !x.anyServes(ports, f.ReplySource) && !x.nodePortServes(f)
	}
	if _, gone := x.goneAddresses[f.Destination]; gone && f.rewritten() {
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
