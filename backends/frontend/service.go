package frontend

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// service is a service with its ports in both families, as described.
type service struct {
	name     model.ServiceName
	object   *model.Service // nil if it is not set
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
		name := model.PortName{Service: s.name, Port: id.name, Protocol: id.protocol}
		p = &port{family: id.family, service: s, name: name}
		s.ports.add(p)
	}
	return p
}

// removeUnused forgets unused ports, and reports whether none are left.
func (s *service) removeUnused() (empty bool) {
	for i, p := range slices.Backward(s.ports.all) {
		if p.isUnused() {
			s.ports.remove(i)
		}
	}
	return s.isEmpty()
}

// isEmpty reports whether nothing is known about a service.
func (s *service) isEmpty() bool { return s.object == nil && len(s.ports.all) == 0 }

// compareAge orders the oldest first. Those of unknown age come last.
func (s *service) compareAge(o *service) int {
	a, b := s.object.Created, o.object.Created
	return cmp.Or(first(!a.IsZero(), !b.IsZero()), a.Compare(b))
}

// sameFrontends reports whether a service asks for the same keys with the same restrictions as before, apart from its
// ports.
func sameFrontends(a, b *model.Service) bool {
	return a != nil && b != nil && a.UID == b.UID && slices.Equal(a.ClusterIPs, b.ClusterIPs) &&
		slices.Equal(a.ExternalIPs, b.ExternalIPs) && slices.Equal(a.LoadBalancerIPs, b.LoadBalancerIPs) &&
		slices.Equal(a.LoadBalancerSourceRanges, b.LoadBalancerSourceRanges)
}

// frontends returns the frontends of a service port in a family, sorted by key, and how many more it has beyond a
// limit. An address that is a VIP as well as an external IP is a VIP: otherwise its source ranges would have no effect.
func frontends(f model.Family, s *model.Service, sp model.ServicePort, limit int) (list []Frontend, omitted int) {
	routes := sp.Routes(f)
	external := routes.External.Endpoints != 0
	size := 2
	if external {
		size += len(s.LoadBalancerIPs) + len(s.ExternalIPs)
	}
	list = make([]Frontend, 0, min(size, max(limit, 0)))
	add := func(a netip.Addr, port uint16, kind Kind, restricted bool) {
		if len(list) >= limit {
			omitted++
			return
		}
		key := Key{Addr: a, Port: port, Protocol: sp.Protocol}
		list = append(list, Frontend{Key: key, Kind: kind, Restricted: restricted})
	}
	if a := s.ClusterIP(f); a.IsValid() && routes.ClusterIP.Endpoints != 0 {
		add(a, sp.Port, ClusterIP, false)
	}
	if !external {
		return list, omitted
	}
	if sp.NodePort != 0 {
		add(netip.Addr{}, sp.NodePort, NodePort, false)
	}
	restricted := slices.ContainsFunc(s.LoadBalancerSourceRanges, func(p netip.Prefix) bool {
		return model.FamilyOf(p.Addr()) == f
	})
	for _, a := range s.LoadBalancerIPs {
		if model.FamilyOf(a) == f {
			add(a, sp.Port, LoadBalancerIP, restricted)
		}
	}
	for _, a := range s.ExternalIPs {
		if model.FamilyOf(a) == f {
			add(a, sp.Port, ExternalIP, false)
		}
	}
	slices.SortFunc(list, func(a, b Frontend) int { return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Kind, b.Kind)) })
	return slices.CompactFunc(list, func(a, b Frontend) bool { return a.Key == b.Key }), omitted
}
