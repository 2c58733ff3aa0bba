package conntrack

import (
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/internal/refusals"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// targets is a set of serving endpoints.
type targets map[netip.AddrPort]struct{}

func (t targets) has(target netip.AddrPort) bool {
	_, has := t[target]
	return has
}

// udpPort has what determines whether a flow to a service's UDP port is stale, in one family.
type udpPort struct {
	name      model.PortName
	addresses []netip.AddrPort // of the service
	nodePort  uint16           // 0: none
	serving   targets
}

// sameDestinations reports whether two ports have the same name, addresses and node port.
func (p *udpPort) sameDestinations(o *udpPort) bool {
	return p.name == o.name && p.nodePort == o.nodePort && slices.Equal(p.addresses, o.addresses)
}

// destinations calls f with each address and port of the service port. The node port has no address.
func (p *udpPort) destinations(f func(netip.AddrPort)) {
	for _, a := range p.addresses {
		f(a)
	}
	if p.nodePort != 0 {
		f(netip.AddrPortFrom(netip.Addr{}, p.nodePort))
	}
}

// udpPorts returns a service's UDP ports in a family, without serving endpoints. There are none if the service does not
// have the family.
func udpPorts(service *model.Service, family model.Family) []*udpPort {
	if service == nil || !service.ClusterIP(family).IsValid() {
		return nil
	}
	var ports []*udpPort
	for _, p := range service.Ports {
		if p.Protocol != model.UDP {
			continue
		}
		port := &udpPort{name: service.PortName(p), nodePort: p.NodePort}
		for _, list := range [][]netip.Addr{service.ClusterIPs, service.ExternalIPs, service.LoadBalancerIPs} {
			for _, a := range list {
				if model.FamilyOf(a) == family {
					port.addresses = append(port.addresses, netip.AddrPortFrom(a, p.Port))
				}
			}
		}
		ports = append(ports, port)
	}
	return ports
}

// index determines whether a flow of one family is stale. The cost of an update depends on the change, not on the
// number of services.
type index struct {
	services  map[model.ServiceName][]*udpPort
	ports     map[model.PortName]*udpPort // by name
	addresses map[netip.AddrPort]portSet  // several ports if services claim the same address
	nodePorts map[uint16]portSet
	owners    map[netip.AddrPort]model.PortName // of contested addresses and node ports, if they are reported (S59)
	servedBy  map[netip.AddrPort]portSet        // by serving endpoint
	// Addresses and node ports that services no longer have, to which flows may still be rewritten, with the revision of
	// their removal. They are ignored if another service has the address now.
	goneAddresses map[netip.AddrPort]uint64
	goneNodePorts map[uint16]uint64
	revision      uint64
	// nodeAddresses are the node's addresses at which the kernel serves node ports.
	nodeAddresses []netip.Addr
}

func newIndex() *index {
	return &index{
		services:      map[model.ServiceName][]*udpPort{},
		ports:         map[model.PortName]*udpPort{},
		addresses:     map[netip.AddrPort]portSet{},
		nodePorts:     map[uint16]portSet{},
		owners:        map[netip.AddrPort]model.PortName{},
		servedBy:      map[netip.AddrPort]portSet{},
		goneAddresses: map[netip.AddrPort]uint64{},
		goneNodePorts: map[uint16]uint64{},
	}
}

// set replaces the UDP ports of a service (none if it is deleted), and adds to changes the flows that may be stale now.
// It keeps the serving endpoints of known ports; for a new port it calls serving, and keeps the returned map.
func (x *index) set(name model.ServiceName, ports []*udpPort, serving func(model.PortName) targets, changes *pending) {
	old := x.services[name]
	if slices.EqualFunc(old, ports, (*udpPort).sameDestinations) {
		return
	}
	x.revision++
	for _, p := range ports {
		if known := x.ports[p.name]; known != nil {
			p.serving = known.serving
		} else {
			p.serving = serving(p.name)
		}
	}
	selectStale(old, ports, changes)
	removed := make(map[model.PortName]*udpPort, len(old))
	for _, p := range old {
		removed[p.name] = p
		delete(x.ports, p.name)
		for _, a := range p.addresses {
			release(x.addresses, x.goneAddresses, a, p, x.revision)
		}
		if p.nodePort != 0 {
			release(x.nodePorts, x.goneNodePorts, p.nodePort, p, x.revision)
		}
	}
	var current []*udpPort
	for _, p := range ports {
		if x.ports[p.name] != nil {
			continue // the service is invalid: a port occurs twice
		}
		if known := removed[p.name]; known != nil { // it stays, with its serving endpoints
			delete(removed, p.name)
			known.addresses, known.nodePort = p.addresses, p.nodePort
			p = known
		} else {
			for target := range p.serving {
				join(x.servedBy, target, p)
			}
		}
		current = append(current, p)
		x.ports[p.name] = p
		for _, a := range p.addresses {
			join(x.addresses, a, p)
		}
		if p.nodePort != 0 {
			join(x.nodePorts, p.nodePort, p)
		}
	}
	for _, p := range removed {
		for target := range p.serving {
			leave(x.servedBy, target, p)
		}
	}
	if x.services[name] = current; len(current) == 0 {
		delete(x.services, name)
	}
}

// serves reports whether an endpoint is serving according to the index.
func (x *index) serves(key model.EndpointKey) bool {
	p := x.ports[key.Port]
	return p != nil && p.serving.has(key.Target)
}

// setServing adds a serving endpoint to its port, if the index has the port. For a port's first endpoint it adds all
// flows to the port to changes, because they were not rewritten until then.
func (x *index) setServing(key model.EndpointKey, changes *pending) {
	p := x.ports[key.Port]
	if p == nil || p.serving.has(key.Target) {
		return
	}
	if len(p.serving) == 0 {
		p.destinations(func(d netip.AddrPort) { changes.add(Selection{Destination: d}) })
	}
	p.serving[key.Target] = struct{}{}
	join(x.servedBy, key.Target, p)
}

// deleteServing removes an endpoint that no longer serves, which may make the flows to it stale.
func (x *index) deleteServing(key model.EndpointKey, changes *pending) {
	if x.serves(key) {
		p := x.ports[key.Port]
		delete(p.serving, key.Target)
		leave(x.servedBy, key.Target, p)
		changes.add(Selection{ReplySource: key.Target})
	}
}

// setOwner records who owns an address or node port that several ports claim, or that no more than one does. If it
// passes from one owner to another, the flows to it may be stale. So they may when a contest ends: the port that is
// left need not be the owner of before, as where the node loses an address, and a node port its claim to it. When a
// contest begins, they are selected already: the address was added to one of the ports.
func (x *index) setOwner(d netip.AddrPort, owner model.PortName, changes *pending) {
	before, contested := x.owners[d]
	if contested && before != owner {
		changes.add(Selection{Destination: d})
	}
	if owner == (model.PortName{}) {
		delete(x.owners, d)
	} else {
		x.owners[d] = owner
	}
}

// isContested reports whether several ports claim an address or node port, and its owner is known.
func (x *index) isContested(d netip.AddrPort) bool {
	_, contested := x.owners[d]
	return contested
}

// selectAccepted selects the flows to the ports of a service that were refused in a family and are not any more: they
// were not rewritten until now.
func (x *index) selectAccepted(name model.ServiceName, f model.Family, before, now refusals.Set, changes *pending) {
	for _, p := range x.services[name] {
		port := &model.ServicePort{Name: p.name.Port, Protocol: p.name.Protocol}
		if before.Has(port, f) && !now.Has(port, f) {
			p.destinations(func(d netip.AddrPort) { changes.add(Selection{Destination: d}) })
		}
	}
}

// selectStale selects the flows that may be stale after a service's ports changed: flows to an address or node port
// that was added or removed, and to a removed endpoint.
func selectStale(old, ports []*udpPort, changes *pending) {
	before, after := byDestination(old), byDestination(ports)
	for d, p := range before {
		if changes.all {
			return
		}
		if q := after[d]; q == nil {
			changes.add(Selection{Destination: d})
		} else {
			selectStaleOf(p, q, changes)
		}
	}
	for d := range after {
		if before[d] == nil {
			changes.add(Selection{Destination: d})
		}
	}
}

func byDestination(ports []*udpPort) map[netip.AddrPort]*udpPort {
	m := map[netip.AddrPort]*udpPort{}
	for _, p := range ports {
		p.destinations(func(d netip.AddrPort) { m[d] = p })
	}
	return m
}

// selectStaleOf selects the flows that may be stale after one port replaced another.
func selectStaleOf(old, port *udpPort, changes *pending) {
	if old.name == port.name {
		return // the same endpoints serve
	}
	if len(old.serving) == 0 && len(port.serving) > 0 {
		port.destinations(func(d netip.AddrPort) { changes.add(Selection{Destination: d}) })
	}
	for target := range old.serving {
		if changes.all {
			return
		}
		if !port.serving.has(target) {
			changes.add(Selection{ReplySource: target})
		}
	}
}

// release removes a port from the claimants of an address or node port. If it was the last one, it records the removal.
func release[K comparable](ports map[K]portSet, gone map[K]uint64, key K, p *udpPort, revision uint64) {
	if leave(ports, key, p); ports[key].len() == 0 {
		gone[key] = revision
	}
}

// cleaned forgets addresses removed up to a revision, after a complete pass that began at that revision.
func (x *index) cleaned(revision uint64) {
	maps.DeleteFunc(x.goneAddresses, func(_ netip.AddrPort, at uint64) bool { return at <= revision })
	maps.DeleteFunc(x.goneNodePorts, func(_ uint16, at uint64) bool { return at <= revision })
}
