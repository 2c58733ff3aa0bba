package conntrack

import (
	"cmp"
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

// udpService has the destinations of a service in one family: each of its addresses with each of its UDP ports, and the
// node ports. Addresses and ports are kept apart, because a service may have thousands of both.
type udpService struct {
	addresses []netip.Addr
	ports     []*udpPort // in order of their numbers
}

// udpPort has what determines whether a flow to a service's UDP port is stale, in one family.
type udpPort struct {
	service  *udpService
	name     model.PortName
	number   uint16
	nodePort uint16 // 0: none
	serving  targets
}

// sameDestinations reports whether two services have the same ports and addresses, in the same order.
func (s *udpService) sameDestinations(o *udpService) bool {
	return slices.Equal(s.addresses, o.addresses) && slices.EqualFunc(s.ports, o.ports, (*udpPort).sameNumbers)
}

// sameNumbers reports whether two ports have the same name, port number and node port.
func (p *udpPort) sameNumbers(o *udpPort) bool {
	return p.name == o.name && p.number == o.number && p.nodePort == o.nodePort
}

// numbered returns the ports with a number: nearly always no more than one.
func (s *udpService) numbered(number uint16) []*udpPort {
	begin, _ := slices.BinarySearchFunc(s.ports, number, (*udpPort).compareNumber)
	end := begin
	for end < len(s.ports) && s.ports[end].number == number {
		end++
	}
	return s.ports[begin:end]
}

// numbers returns the numbers of the ports, in order.
func (s *udpService) numbers() []uint16 {
	numbers := make([]uint16, len(s.ports))
	for i, p := range s.ports {
		numbers[i] = p.number
	}
	return numbers
}

func (p *udpPort) compareNumber(number uint16) int { return cmp.Compare(p.number, number) }

// selectAll selects the flows to a port at all its addresses, and to its node port.
func (p *udpPort) selectAll(changes *pending) {
	changes.addDestinations(p.service.addresses, p.number)
	changes.addNodePort(p.nodePort)
}

// udpServiceOf returns a service's UDP ports in a family, without serving endpoints. There are none if there is no
// service, or if it does not have the family.
func udpServiceOf(service *model.Service, family model.Family) *udpService {
	s := &udpService{}
	if service == nil || !service.ClusterIP(family).IsValid() {
		return s
	}
	for _, p := range service.Ports {
		if p.Protocol == model.UDP {
			s.ports = append(s.ports, &udpPort{service: s, name: service.PortName(p), number: p.Port, nodePort: p.NodePort})
		}
	}
	if len(s.ports) == 0 {
		return s
	}
	slices.SortStableFunc(s.ports, func(p, o *udpPort) int { return p.compareNumber(o.number) })
	for _, list := range [][]netip.Addr{service.ClusterIPs, service.ExternalIPs, service.LoadBalancerIPs} {
		for _, a := range list {
			if model.FamilyOf(a) == family {
				s.addresses = append(s.addresses, a)
			}
		}
	}
	return s
}

// index determines whether a flow of one family is stale. The cost of an update depends on the change, not on the
// number of services.
type index struct {
	services  map[model.ServiceName]*udpService
	ports     map[model.PortName]*udpPort       // by name
	addresses map[netip.Addr]set[udpService]    // several if services claim the same address
	numbers   map[uint16]portSet                // by port number
	nodePorts map[uint16]portSet                // by node port
	owners    map[netip.AddrPort]model.PortName // of contested addresses and node ports, if they are reported (S59)
	servedBy  map[netip.AddrPort]portSet        // by serving endpoint
	// Addresses and node ports that services no longer have, to which flows may still be rewritten, with the revision of
	// their removal. They are ignored if another service has the address now.
	goneAddresses map[netip.Addr][]gone
	goneNodePorts map[uint16]uint64
	revision      uint64
	// nodeAddresses are the node's addresses at which the kernel serves node ports.
	nodeAddresses []netip.Addr
}

// gone has ports that an address had until a revision.
type gone struct {
	numbers  []uint16 // in order; the addresses of a service share them
	revision uint64
}

func newIndex() *index {
	return &index{
		services:      map[model.ServiceName]*udpService{},
		ports:         map[model.PortName]*udpPort{},
		addresses:     map[netip.Addr]set[udpService]{},
		numbers:       map[uint16]portSet{},
		nodePorts:     map[uint16]portSet{},
		owners:        map[netip.AddrPort]model.PortName{},
		servedBy:      map[netip.AddrPort]portSet{},
		goneAddresses: map[netip.Addr][]gone{},
		goneNodePorts: map[uint16]uint64{},
	}
}

// set replaces the UDP ports and addresses of a service (none if it is deleted), and adds to changes the flows that may
// be stale now. It keeps the serving endpoints of known ports; for a new port it calls serving, and keeps the returned
// map.
func (x *index) set(name model.ServiceName, now *udpService, serving func(model.PortName) targets, changes *pending) {
	service := x.services[name]
	if service == nil {
		service = &udpService{}
	}
	if service.sameDestinations(now) {
		return
	}
	x.revision++
	for _, p := range now.ports {
		if known := x.ports[p.name]; known != nil {
			p.serving = known.serving
		} else {
			p.serving = serving(p.name)
		}
	}
	selectStale(service, now, changes)
	addresses, numbers := service.addresses, service.numbers()
	x.setPorts(service, now.ports)
	x.setAddresses(service, now.addresses)
	x.noteGone(addresses, numbers, service)
	if x.services[name] = service; len(service.ports) == 0 {
		delete(x.services, name)
	}
}

// setPorts replaces the ports of a service. One that stays keeps its serving endpoints.
func (x *index) setPorts(service *udpService, ports []*udpPort) {
	removed := make(map[model.PortName]*udpPort, len(service.ports))
	for _, p := range service.ports {
		removed[p.name] = p
		delete(x.ports, p.name)
		leave(x.numbers, p.number, p)
		if p.nodePort != 0 {
			if leave(x.nodePorts, p.nodePort, p); x.nodePorts[p.nodePort].len() == 0 {
				x.goneNodePorts[p.nodePort] = x.revision
			}
		}
	}
	service.ports = nil
	for _, p := range ports {
		if x.ports[p.name] != nil {
			continue // the service is invalid: a port occurs twice
		}
		if known := removed[p.name]; known != nil { // it stays, with its serving endpoints
			delete(removed, p.name)
			known.number, known.nodePort = p.number, p.nodePort
			p = known
		} else {
			for target := range p.serving {
				join(x.servedBy, target, p)
			}
		}
		p.service = service
		service.ports = append(service.ports, p)
		x.ports[p.name] = p
		join(x.numbers, p.number, p)
		if p.nodePort != 0 {
			join(x.nodePorts, p.nodePort, p)
		}
	}
	for _, p := range removed {
		for target := range p.serving {
			leave(x.servedBy, target, p)
		}
	}
}

func (x *index) setAddresses(service *udpService, addresses []netip.Addr) {
	if slices.Equal(service.addresses, addresses) {
		return
	}
	for _, a := range service.addresses {
		leave(x.addresses, a, service)
	}
	for _, a := range addresses {
		join(x.addresses, a, service)
	}
	service.addresses = addresses
}

// noteGone records what a service had and has no more, until a complete pass has seen it.
func (x *index) noteGone(addresses []netip.Addr, numbers []uint16, service *udpService) {
	var removed []uint16
	for _, n := range numbers {
		if len(service.numbered(n)) == 0 {
			removed = append(removed, n)
		}
	}
	for _, a := range addresses {
		here := numbers
		if x.addresses[a].has(service) {
			here = removed
		}
		if len(here) == 0 {
			continue
		}
		list := x.goneAddresses[a]
		i := slices.IndexFunc(list, func(g gone) bool { return slices.Equal(g.numbers, here) })
		if i < 0 { // otherwise it comes and goes
			i = len(list)
			x.goneAddresses[a] = append(list, gone{numbers: here})
		}
		x.goneAddresses[a][i].revision = x.revision
	}
}

// isGone reports whether services had an address and port that they may not have any more.
func (x *index) isGone(d netip.AddrPort) bool {
	return slices.ContainsFunc(x.goneAddresses[d.Addr()], func(g gone) bool {
		_, found := slices.BinarySearch(g.numbers, d.Port())
		return found
	})
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
		p.selectAll(changes)
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
	service := x.services[name]
	if service == nil {
		return
	}
	for _, p := range service.ports {
		port := &model.ServicePort{Name: p.name.Port, Protocol: p.name.Protocol}
		if before.Has(port, f) && !now.Has(port, f) {
			p.selectAll(changes)
		}
	}
}

// selectStale selects the flows that may be stale after a service's ports or addresses changed: flows to an address or
// node port that was added or removed, and to a removed endpoint.
func selectStale(before, now *udpService, changes *pending) {
	had, has := setOf(before.addresses), setOf(now.addresses)
	var kept []netip.Addr
	for a := range had {
		if _, is := has[a]; is {
			kept = append(kept, a)
		} else {
			before.selectAt(a, changes)
		}
	}
	for a := range has {
		if _, was := had[a]; !was {
			now.selectAt(a, changes)
		}
	}
	if len(kept) > 0 {
		for _, p := range before.ports {
			if after := now.numbered(p.number); len(after) > 0 {
				selectStaleOf(p, after[0], changes)
			} else {
				changes.addDestinations(kept, p.number)
			}
		}
		for _, p := range now.ports {
			if len(before.numbered(p.number)) == 0 {
				changes.addDestinations(kept, p.number)
			}
		}
	}
	old, nodePorts := before.byNodePort(), now.byNodePort()
	for number, p := range old {
		if q := nodePorts[number]; q != nil {
			selectStaleOf(p, q, changes)
		} else {
			changes.addNodePort(number)
		}
	}
	for number := range nodePorts {
		if old[number] == nil {
			changes.addNodePort(number)
		}
	}
}

func setOf(addresses []netip.Addr) map[netip.Addr]struct{} {
	set := make(map[netip.Addr]struct{}, len(addresses))
	for _, a := range addresses {
		set[a] = struct{}{}
	}
	return set
}

// selectAt selects the flows to all ports at an address.
func (s *udpService) selectAt(a netip.Addr, changes *pending) {
	for _, p := range s.ports {
		if changes.all {
			return
		}
		changes.add(Selection{Destination: netip.AddrPortFrom(a, p.number)})
	}
}

func (s *udpService) byNodePort() map[uint16]*udpPort {
	ports := map[uint16]*udpPort{}
	for _, p := range s.ports {
		if p.nodePort != 0 {
			ports[p.nodePort] = p
		}
	}
	return ports
}

// selectStaleOf selects the flows that may be stale after one port replaced another.
func selectStaleOf(old, port *udpPort, changes *pending) {
	if old.name == port.name {
		return // the same endpoints serve
	}
	if len(old.serving) == 0 && len(port.serving) > 0 {
		port.selectAll(changes)
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

// cleaned forgets addresses removed up to a revision, after a complete pass that began at that revision.
func (x *index) cleaned(revision uint64) {
	for a, list := range x.goneAddresses {
		list = slices.DeleteFunc(list, func(g gone) bool { return g.revision <= revision })
		if x.goneAddresses[a] = list; len(list) == 0 {
			delete(x.goneAddresses, a)
		}
	}
	maps.DeleteFunc(x.goneNodePorts, func(_ uint16, at uint64) bool { return at <= revision })
}
