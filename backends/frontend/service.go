package frontend

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// service is a service with its ports in both families, as described.
type service struct {
	name     model.ServiceName
	object   *model.Service // nil if it is not set
	age      int64          // when it was made, in microseconds; the highest if that is unknown
	ports    list[portID, *port]
	problems map[Problem]uint64 // that were reported, by key: the round in which they were last there
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

// isEmpty reports whether nothing is known about a service.
func (s *service) isEmpty() bool { return s.object == nil && len(s.ports.all) == 0 }

// isSame reports whether two versions are of one object: a service that was deleted and created again is another one.
func isSame(a, b *model.Service) bool { return a.UID == b.UID && a.Created.Equal(b.Created) }

// setAge follows the service's object.
func (s *service) setAge() {
	if s.age = s.object.Created.UnixMicro(); s.object.Created.IsZero() {
		s.age = math.MaxInt64
	}
}

// sameFrontends reports whether a service asks for the same keys with the same restrictions as before, apart from its
// ports.
func sameFrontends(a, b *model.Service) bool {
	return a != nil && b != nil && slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.LoadBalancerSourceRanges, b.LoadBalancerSourceRanges)
}

// frontends returns the frontends of a service port in a family, sorted by key, and how many more it has beyond a
// limit. vips says whether it may have load-balancer IPs. An address that is a VIP as well as an external IP is a VIP:
// otherwise its source ranges would have no effect.
func frontends(f model.Family, s *model.Service, sp *model.ServicePort, p *Port, vips bool, limit int,
) (list []Frontend, omitted int32) {
	external := p.Routes.External.Endpoints != 0
	size := 2
	if external {
		size += len(s.LoadBalancerIPs) + len(s.ExternalIPs)
	}
	list = make([]Frontend, 0, min(size, max(limit, 0)))
	add := func(kind Kind, a netip.Addr, port uint16) {
		switch {
		case port == 0 || kind != NodePort && model.FamilyOf(a) != f:
		case len(list) >= limit:
			omitted++
		default:
			list = append(list, Frontend{Key{a, port, sp.Protocol}, kind, p.Restricts(kind)})
		}
	}
	if p.Routes.ClusterIP.Endpoints != 0 {
		add(ClusterIP, s.ClusterIP(f), sp.Port)
	}
	if !external {
		return list, omitted
	}
	add(NodePort, netip.Addr{}, sp.NodePort)
	for _, a := range s.LoadBalancerIPs {
		add(LoadBalancerIP, a, sp.Port)
	}
	for _, a := range s.ExternalIPs {
		add(ExternalIP, a, sp.Port)
	}
	slices.SortFunc(list, func(a, b Frontend) int { return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind)) })
	list = slices.CompactFunc(list, func(a, b Frontend) bool { return a.Key == b.Key })
	if !vips {
		list = slices.DeleteFunc(list, func(fr Frontend) bool { return fr.Kind == LoadBalancerIP })
	}
	return list, omitted
}

// hasVIP reports whether a service has a load-balancer IP of a family.
func hasVIP(f model.Family, s *model.Service) bool {
	return slices.ContainsFunc(s.LoadBalancerIPs, func(a netip.Addr) bool { return model.FamilyOf(a) == f })
}
