package preflight

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// Where kube-proxy's modes depart from the rules of docs/semantics.md, as its conformance reports show
// (docs/conformance-results.md) and its code explains.

// deviation returns what kube-proxy does with a connection if that is not what the oracle expects of it, and the rule
// from which it departs; otherwise "".
func (p *proxy) deviation(m *move, port model.PortName, expected oracle.Outcome, from sender) (text, rule string) {
	switch {
	case !p.upstream:
		return "", ""
	case p.packets.LoopbackProxy && expected.Flow.Destination.Addr().IsLoopback():
		if expected.Flow.Protocol != model.TCP || !p.choosesLoopback(expected.Flow.Family()) {
			return rejected, "S36a"
		}
	case p.is(v1alpha2.ProxyModeIPTables):
		return p.iptables(m, port, expected, from)
	case p.is(v1alpha2.ProxyModeIPVS):
		return p.ipvs(port, expected, from)
	}
	return "", ""
}

// choosesLoopback reports whether nodePortAddresses has a range of loopback addresses.
func (p *proxy) choosesLoopback(f model.Family) bool {
	return slices.ContainsFunc(p.choice.CIDRs, func(c netip.Prefix) bool {
		return model.FamilyOf(c.Addr()) == f && c.Addr().IsLoopback()
	})
}

// iptables is deviation for mode iptables. Its rules that refuse and drop external traffic are not in OUTPUT, do not
// depend on source ranges, and apply to node ports at all addresses of the node, whatever nodePortAddresses says.
func (p *proxy) iptables(m *move, port model.PortName, expected oracle.Outcome, from sender) (text, rule string) {
	to := expected.Flow.Destination.Addr()
	host, f := m.isHost(to), expected.Flow.Family()
	empty := len(p.endpoints(port, f, model.ClusterSet|model.LocalSet)) == 0
	switch {
	case empty && from.kind == oracle.Node && !host && p.isExternal(to, port):
		return notServed, "S25"
	case empty && expected.Verdict == oracle.Drop && p.isVIP(to, port):
		return rejected, "S26"
	case !host || expected.Verdict != oracle.NotOurs, expected.Flow.Destination.Port() != p.port(port).NodePort:
		return "", ""
	case empty:
		return rejected, "S35"
	case p.external(port, f).Endpoints == model.LocalSet && len(p.endpoints(port, f, model.LocalSet)) == 0:
		return "dropped", "S35"
	}
	return "", ""
}

// ipvs is deviation for mode ipvs: its virtual server of a service with a Local policy has the endpoints of this node,
// or all if there are none, for every client; and its source ranges admit the node.
func (p *proxy) ipvs(port model.PortName, expected oracle.Outcome, from sender) (text, rule string) {
	f := expected.Flow.Family()
	local, all := p.endpoints(port, f, model.LocalSet), p.endpoints(port, f, model.ClusterSet|model.LocalSet)
	outside := from.kind == oracle.External || from.kind == oracle.RemotePod
	switch {
	case len(all) == 0 && expected.Verdict == oracle.Drop:
		switch byRanges := hasReason(expected, "S26"); {
		case !byRanges:
			return rejected, "S58"
		case from.kind == oracle.Node:
			return rejected, "S26"
		}
	case expected.Verdict == oracle.Drop && hasReason(expected, "S26"):
		if from.kind == oracle.Node {
			return "delivered if the program has bound an address of the node, otherwise dropped", "S26"
		}
	case expected.Verdict == oracle.Drop && expected.Route.Endpoints == model.LocalSet:
		switch isExternal := !p.isClusterIP(expected.Flow.Destination.Addr(), port); {
		case !isExternal && p.external(port, f).Endpoints == 0:
			return rejected, "S58"
		case isExternal && outside:
			return "sent to endpoints of other nodes, whose replies do not come back through this one", "S58"
		}
		return "delivered to endpoints of other nodes", "S58"
	case !outside && expected.Verdict == oracle.Deliver && expected.Route.Endpoints == model.ClusterSet &&
		!p.isClusterIP(expected.Flow.Destination.Addr(), port) && p.external(port, f).Endpoints == model.LocalSet &&
		len(local) > 0 && !slices.Equal(local, targets(expected)):
		return "delivered to the endpoints of this node alone", "S27"
	}
	return "", ""
}

const rejected = "rejected"

func targets(o oracle.Outcome) (list []netip.AddrPort) {
	for _, e := range o.Endpoints {
		list = append(list, e.Endpoint)
	}
	return list
}

func hasReason(o oracle.Outcome, rule string) bool {
	return slices.ContainsFunc(o.Reasons, func(r oracle.Reason) bool { return r.Rule == rule })
}

// endpoints returns the endpoints of a service port that are in any of the sets, in order.
func (p *proxy) endpoints(port model.PortName, f model.Family, sets model.EndpointSets) (list []netip.AddrPort) {
	if entry := p.snapshot.Service(port.Service); entry != nil {
		for _, e := range entry.PortEndpoints(port.Port, port.Protocol) {
			if e.Family() == f && e.Sets&sets != 0 {
				list = append(list, e.Target)
			}
		}
	}
	return list
}

// service returns the service of a port, an empty one if it does not exist.
func (p *proxy) service(port model.PortName) *model.Service {
	if entry := p.snapshot.Service(port.Service); entry != nil {
		return entry.Service
	}
	return &model.Service{}
}

// port returns a service port, the zero value if it does not exist.
func (p *proxy) port(name model.PortName) model.ServicePort {
	if sp := p.service(name).Port(name.Port, name.Protocol); sp != nil {
		return *sp
	}
	return model.ServicePort{}
}

// external returns the route of external traffic to a service port.
func (p *proxy) external(port model.PortName, f model.Family) model.Route {
	sp := p.port(port)
	return sp.Routes.At(f).External
}

// isClusterIP reports whether an address is a cluster IP of a service.
func (p *proxy) isClusterIP(a netip.Addr, port model.PortName) bool {
	return slices.Contains(p.service(port).ClusterIPs, a)
}

// isVIP reports whether an address is a load-balancer IP of a service.
func (p *proxy) isVIP(a netip.Addr, port model.PortName) bool {
	return slices.Contains(p.service(port).LoadBalancerIPs, a)
}

// isExternal reports whether an address is an external IP or load-balancer IP of a service.
func (p *proxy) isExternal(a netip.Addr, port model.PortName) bool {
	return slices.Contains(p.service(port).ExternalIPs, a) || p.isVIP(a, port)
}

// refusesOtherPorts reports whether new connections to ports of an address that no service has are refused, because the
// address is on the dummy interface of mode ipvs.
func (p *proxy) refusesOtherPorts(m *move, a netip.Addr) bool {
	return p.adds(m, a) && (p.upstream || !m.isOthers(a))
}

// adds reports whether the dummy interface of mode ipvs adds an address to those of the host. An address that the proxy
// does not serve, because of its families or of a gate (S6), is not there.
func (p *proxy) adds(m *move, a netip.Addr) bool {
	_, has := p.addresses[a]
	return has && p.is(v1alpha2.ProxyModeIPVS) && !m.isHost(a)
}

// isOthers reports whether an address is another node's or an API server's, and not this node's.
func (m *move) isOthers(a netip.Addr) bool {
	_, is := m.others.ips[a]
	return !m.isHost(a) &&
		(is || slices.ContainsFunc(m.apiServers, func(s netip.AddrPort) bool { return s.Addr() == a }))
}

// findAPIServers finds the addresses and ports of the API servers: the endpoints of default/kubernetes.
func (m *move) findAPIServers() {
	port := model.PortName{Service: model.ServiceName{Namespace: "default", Name: "kubernetes"}, Port: "https",
		Protocol: model.TCP}
	m.apiServers = slices.Concat(m.new.endpoints(port, model.IPv4, model.ClusterSet),
		m.new.endpoints(port, model.IPv6, model.ClusterSet))
}

// bars reports whether a service is not served at an address and port because they are an API server's (S63).
func (p *proxy) bars(m *move, protocol model.Protocol, to netip.AddrPort) bool {
	return p.is(v1alpha2.ProxyModeIPVS) && !p.upstream && protocol == model.TCP && !m.isHost(to.Addr()) &&
		slices.Contains(m.apiServers, to)
}

// guardsClusterIPs reports whether unused ports of cluster IPs are refused (S33).
func (p *proxy) guardsClusterIPs() bool { return !p.is(v1alpha2.ProxyModeIPTables) }

// guardsServiceCIDRs reports whether addresses of the ServiceCIDRs that no service has are dropped (S33).
func (p *proxy) guardsServiceCIDRs() bool {
	return p.is(v1alpha2.ProxyModeNFTables) || p.is(v1alpha2.ProxyModeIPVS) && !p.upstream
}

// answersHealthChecks reports whether a service's health check answers at an address of the host, or at one that mode
// ipvs adds to it (S38, S65). At those, kube-proxy's answers at all addresses of services, this library's not at
// cluster IPs. checked are those of checkedVIPs.
func (p *proxy) answersHealthChecks(
	m *move, s *model.Service, a netip.Addr, checked map[netip.Addr]struct{},
) bool {
	f := model.FamilyOf(a)
	if _, is := checked[a]; is {
		return true
	}
	switch {
	case !slices.Contains(p.families, f), !p.upstream && m.isOthers(a):
		return false
	case !m.isHost(a):
		return p.adds(m, a) && p.choice.All(f) && (p.upstream || !slices.Contains(s.ClusterIPs, a))
	}
	_, is := p.nodePortIPs[a]
	return is
}

// answersAtVIP reports whether health checks answer at an external or load-balancer IP that the host has, whatever
// nodePortAddresses say (S65).
func (p *proxy) answersAtVIP(a netip.Addr) bool { return !p.upstream && !a.IsLoopback() }

// mayCheckAt reports whether the host has an external or load-balancer IP at which health checks answer (S65), unless
// the service has too many of them.
func (p *proxy) mayCheckAt(m *move, a netip.Addr) bool {
	return p.answersAtVIP(a) && slices.Contains(p.families, model.FamilyOf(a)) && !m.isOthers(a) &&
		(m.isHost(a) || p.adds(m, a))
}

// checkedVIPs returns the external and load-balancer IPs at which a service's health check answers, apart from those
// that serve node ports: the first few of each family (S65).
func (p *proxy) checkedVIPs(m *move, name model.ServiceName) map[netip.Addr]struct{} {
	checked := map[netip.Addr]struct{}{}
	for _, f := range p.families {
		list, _ := healthcheck.VIPs(p.service(model.PortName{Service: name}), func(a netip.Addr) bool {
			_, is := p.nodePortIPs[a]
			return model.FamilyOf(a) == f && !is && p.mayCheckAt(m, a)
		})
		for _, a := range list {
			checked[a] = struct{}{}
		}
	}
	return checked
}
