package frontend

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// service is a service with its ports in both families, as wanted.
type service struct {
	name     model.ServiceName
	object   *model.Service // nil if it is not set
	age      int64          // when it was made, in microseconds; the highest if that is unknown
	ports    list[portID, *port]
	problems map[Problem]told // that were reported, by key
	tenant   *tenant
	// destinations, source ranges, restricted ports, sticky endpoints and sticky ports are what it asks for in each
	// family.
	destinations                            [2]int
	ranges, restricted, sticky, stickyPorts [2]int32
}

// portID identifies a port in its service.
type portID struct {
	family   *family
	name     string
	protocol model.Protocol
}

// port returns a port, or nil.
func (s *service) port(id portID) *port {
	if i := s.ports.find(id); i >= 0 {
		return s.ports.all[i]
	}
	return nil
}

// makePort returns a port, creating it if necessary.
func (s *service) makePort(id portID) *port {
	p := s.port(id)
	if p == nil {
		p = &port{family: id.family, service: s,
			name: model.PortName{Service: s.name, Port: id.name, Protocol: id.protocol}}
		s.ports.add(p)
	}
	return p
}

// leave notes that the service does not have a port any more.
func (s *service) leave(p *port) {
	if !p.asks {
		return
	}
	before := p.cost()
	p.asks, p.spec, p.demand, p.omitted, p.excess = false, nil, 0, 0, noExcess
	p.touch()
	p.charge(before)
	p.family.excesses.note(p, nil)
	p.mark() // it may be unused now
}

// isEmpty reports whether nothing is known about a service.
func (s *service) isEmpty() bool { return s.object == nil && len(s.ports.all) == 0 }

// isSame reports whether two versions are of one object: a service that was deleted and created again is another one.
func isSame(a, b *model.Service) bool { return a.UID == b.UID && a.Created.Equal(b.Created) }

// sameFrontends reports whether a service asks for the same keys with the same restrictions as before, apart from its
// ports.
func sameFrontends(a, b *model.Service) bool {
	return a != nil && b != nil && slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.LoadBalancerSourceRanges, b.LoadBalancerSourceRanges)
}

// addresses are those of a service in one family, each once. A cluster IP counts as nothing else, and an address that
// is both a VIP and an external IP counts as a VIP: otherwise its source ranges would have no effect.
type addresses struct {
	cluster         netip.Addr
	vips, externals []netip.Addr
}

// addressesOf returns the addresses of a service, without its VIPs if these are not to be served.
func addressesOf(f model.Family, s *model.Service, vips bool) addresses {
	a := addresses{cluster: s.ClusterIP(f)}
	a.vips = distinct(f, s.LoadBalancerIPs, []netip.Addr{a.cluster})
	a.externals = distinct(f, s.ExternalIPs, []netip.Addr{a.cluster}, a.vips)
	if !vips {
		a.vips = nil
	}
	return a
}

// distinct returns the addresses of a family in a list, sorted, each once, and without those in other sorted lists. It
// may return the list itself, because those of the model are sorted and have no duplicates.
func distinct(f model.Family, list []netip.Addr, others ...[]netip.Addr) []netip.Addr {
	unwanted := func(a netip.Addr) bool {
		return model.FamilyOf(a) != f || slices.ContainsFunc(others, func(other []netip.Addr) bool {
			_, found := slices.BinarySearchFunc(other, a, netip.Addr.Compare)
			return found
		})
	}
	sorted := slices.IsSortedFunc(list, func(a, b netip.Addr) int { return cmp.Or(a.Compare(b), -1) })
	if sorted && !slices.ContainsFunc(list, unwanted) {
		return list
	}
	list = slices.DeleteFunc(slices.Clone(list), unwanted)
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// frontends returns the frontends of a service port, sorted by key, and how many more it has beyond a limit: these are
// the last ones of its external IPs, then of its VIPs. It does not visit these.
func frontends(a *addresses, sp *model.ServicePort, p *Port, limit int) (list []Frontend, omitted int) {
	external := p.Routes.External.Endpoints != 0
	var total int
	ofKind := func(kind Kind, port uint16, addrs ...netip.Addr) {
		total += len(addrs)
		for _, a := range addrs[:max(0, min(len(addrs), limit-len(list)))] {
			list = append(list, Frontend{Key{a, port, sp.Protocol}, kind, p.Restricts(kind)})
		}
	}
	size := 2
	if external {
		size += len(a.vips) + len(a.externals)
	}
	list = make([]Frontend, 0, max(0, min(size, limit)))
	if p.Routes.ClusterIP.Endpoints != 0 && a.cluster.IsValid() {
		ofKind(ClusterIP, sp.Port, a.cluster)
	}
	if external {
		if sp.NodePort != 0 {
			ofKind(NodePort, sp.NodePort, netip.Addr{})
		}
		ofKind(LoadBalancerIP, sp.Port, a.vips...)
		ofKind(ExternalIP, sp.Port, a.externals...)
	}
	slices.SortFunc(list, func(a, b Frontend) int { return a.Key.Compare(b.Key) })
	return list, total - len(list)
}

// hasVIP reports whether a service has a load-balancer IP of a family.
func hasVIP(f model.Family, s *model.Service) bool {
	return slices.ContainsFunc(s.LoadBalancerIPs, func(a netip.Addr) bool { return model.FamilyOf(a) == f })
}
