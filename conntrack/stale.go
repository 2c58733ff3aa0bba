package conntrack

import (
	"net/netip"
	"slices"
)

// stale reports whether a flow is stale (S40, S41).
func (x *index) stale(f Flow) bool {
	if c := x.claimantsOf(f.Destination); c.services.len() > 0 {
		owner := x.owner(f.Destination)
		switch {
		case owner == nil && c.serve(x.servedBy[f.ReplySource]):
			return false // nearly always
		case c.isEmpty(): // it is another port of their address
		case owner != nil:
			return !owner.serving.has(f.ReplySource)
		default:
			return !x.nodePortServes(f)
		}
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

// claimants has the ports with an address and a port number.
type claimants struct {
	services set[udpService] // with the address
	ports    portSet         // with the number; empty if only one service has the address
	number   uint16
}

func (x *index) claimantsOf(d netip.AddrPort) claimants {
	c := claimants{services: x.addresses[d.Addr()], number: d.Port()}
	if c.services.len() > 1 {
		c.ports = x.numbers[d.Port()]
	}
	return c
}

// any reports whether is returns true for one of the claimants. Thousands of services may claim an address, and
// thousands have the same port number, so it goes through the fewer.
func (c *claimants) any(is func(*udpPort) bool) bool {
	if c.services.len() > 1 && c.services.len() > c.ports.len() {
		for p := range c.ports.all() {
			if c.services.has(p.service) && is(p) {
				return true
			}
		}
		return false
	}
	for s := range c.services.all() {
		if slices.ContainsFunc(s.numbered(c.number), is) {
			return true
		}
	}
	return false
}

func (c *claimants) isEmpty() bool { return !c.any(func(*udpPort) bool { return true }) }

// serve reports whether any of the claimants is one of the ports that an endpoint serves. Thousands may share an
// endpoint as well.
func (c *claimants) serve(served portSet) bool {
	if served.len() <= min(c.services.len(), max(1, c.ports.len())) {
		for p := range served.all() {
			if p.number == c.number && c.services.has(p.service) {
				return true
			}
		}
		return false
	}
	return c.any(served.has)
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
