package serviceport

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Port is a service port in one family.
type Port struct {
	Name   model.PortName
	Routes model.Routes
	// AffinityTimeout is that of session affinity by client IP, a second at least; 0 means none (S32).
	AffinityTimeout time.Duration
	// Destinations are those that traffic comes by. None is there twice.
	Destinations []Destination
	// SourceRanges are who may use restricted destinations (S26).
	SourceRanges []netip.Prefix
	// Cluster and Local are the endpoints of the two sets, each only if a route uses it, in the order of
	// [model.CompareTargets].
	Cluster, Local []netip.AddrPort
	// Hairpins are the addresses of endpoints that may reach themselves by the port and would keep their source then (S29),
	// sorted.
	Hairpins []netip.Addr
}

// Destination is an address and port, or a node port, without address. The protocol is that of the service port.
type Destination struct {
	Addr netip.Addr
	Port uint16
	Kind Kind
	// Restricted: only Port.SourceRanges may use it.
	Restricted bool
}

// Kind is what a destination is in the service. Of several service ports that have the same destination, the one for which
// it is the lowest kind takes the traffic.
type Kind uint8

const (
	ClusterIP Kind = iota // nobody else's, unless somebody lists it by mistake
	LoadBalancerIP
	ExternalIP
	NodePort
)

// Node is what of a node service ports depend on, in one family.
type Node struct {
	Family model.Family
	// LocalPods are the CIDRs of the node's pods, if it is by these that it detects them (S30).
	LocalPods []netip.Prefix
}

// Each calls found for each port of a service, in the order of the service, and skipped for each port and endpoint that
// cannot be programmed. e may be nil: a service that has gone. Its endpoints are sorted as [sink.ServiceEntry] says. The
// callee may keep what it gets.
func (n Node) Each(e *sink.ServiceEntry, found func(Port), skipped func(problem string, port model.PortName)) {
	if e == nil || e.Service == nil {
		return
	}
	for i, sp := range e.Service.Ports {
		p := Port{Name: e.Service.PortName(sp), Routes: sp.Routes(n.Family)}
		if p.Routes.Sets() == 0 {
			continue
		}
		if sp.Port == 0 || sp.Protocol == 0 {
			skipped("it has no port number or protocol", p.Name)
			continue
		}
		if slices.ContainsFunc(e.Service.Ports[:i], func(o model.ServicePort) bool {
			return o.Name == sp.Name && o.Protocol == sp.Protocol && o.Port != 0 && o.Routes(n.Family).Sets() != 0
		}) {
			skipped("the service has two ports of that name", p.Name)
			continue
		}
		if t := e.Service.SessionAffinityTimeout; t > 0 {
			p.AffinityTimeout = max(t, time.Second)
		}
		p.addDestinations(n.Family, e.Service, sp)
		p.addEndpoints(n, e.PortEndpoints(sp.Name, sp.Protocol), skipped)
		found(p)
	}
}

// LogSkipped returns what logs whatever [Node.Each] skips.
func LogSkipped(ctx context.Context) func(problem string, port model.PortName) {
	return func(problem string, p model.PortName) {
		klog.FromContext(ctx).Info("Skipping a part of a service port", "port", p, "reason", problem)
	}
}

func (p *Port) addDestinations(f model.Family, s *model.Service, sp model.ServicePort) {
	size := 1
	external := p.Routes.External.Endpoints != 0
	if external {
		size += len(s.LoadBalancerIPs) + len(s.ExternalIPs) + 1
	}
	p.Destinations = make([]Destination, 0, size)
	add := func(a netip.Addr, port uint16, k Kind, restricted bool) {
		if !slices.ContainsFunc(p.Destinations, func(o Destination) bool { return o.Addr == a && o.Port == port }) {
			p.Destinations = append(p.Destinations, Destination{Addr: a, Port: port, Kind: k, Restricted: restricted})
		}
	}
	if a := s.ClusterIP(f); a.IsValid() && p.Routes.ClusterIP.Endpoints != 0 {
		add(a, sp.Port, ClusterIP, false)
	}
	if !external {
		return
	}
	// An address that is a VIP as well as an external IP is a VIP: what is closed to some must not be open elsewhere.
	p.SourceRanges = s.SourceRanges(f)
	for _, a := range s.LoadBalancerIPs {
		if model.FamilyOf(a) == f {
			add(a, sp.Port, LoadBalancerIP, len(p.SourceRanges) > 0)
		}
	}
	for _, a := range s.ExternalIPs {
		if model.FamilyOf(a) == f {
			add(a, sp.Port, ExternalIP, false)
		}
	}
	if sp.NodePort != 0 {
		add(netip.Addr{}, sp.NodePort, NodePort, false)
	}
}

func (p *Port) addEndpoints(n Node, endpoints []*model.Endpoint, skipped func(string, model.PortName)) {
	sets := p.Routes.Sets()
	if sets.Has(model.ClusterSet) {
		p.Cluster = make([]netip.AddrPort, 0, len(endpoints))
	}
	for _, ep := range endpoints {
		used := ep.Sets & sets
		if used == 0 || ep.Family() != n.Family {
			continue
		}
		if ep.Target.Port() == 0 {
			skipped("its endpoint "+ep.Target.Addr().String()+" has no port number", p.Name)
			continue
		}
		if used.Has(model.ClusterSet) {
			p.Cluster = append(p.Cluster, ep.Target)
		}
		if used.Has(model.LocalSet) {
			p.Local = append(p.Local, ep.Target)
		}
		// Endpoints are sorted: those of the same address are next to each other.
		if a, h := ep.Target.Addr(), len(p.Hairpins); (h == 0 || p.Hairpins[h-1] != a) && p.reachesItself(n, ep, used) {
			p.Hairpins = append(p.Hairpins, a)
		}
	}
}

// reachesItself tells whether a connection from an endpoint to itself might keep its source address but for S29. Those of
// this node always count; others only where a route takes them, so that there are few.
func (p *Port) reachesItself(n Node, ep *model.Endpoint, used model.EndpointSets) bool {
	if ep.Local {
		return true
	}
	asPod := n.mayPassForLocalPod(ep.Target.Addr())
	keeps := func(r model.Route, isSource bool) bool {
		return used.Has(r.Endpoints) && isSource &&
			(r.Masquerade == model.MasqueradeNever || r.Masquerade == model.MasqueradeUnlessLocalPod && asPod)
	}
	return keeps(p.Routes.ClusterIP, true) || keeps(p.Routes.External, true) || keeps(p.Routes.ExternalFromPod, asPod)
}

// mayPassForLocalPod tells whether traffic from an address may be taken for that of a pod of this node.
func (n Node) mayPassForLocalPod(a netip.Addr) bool {
	return slices.ContainsFunc(n.LocalPods, func(p netip.Prefix) bool { return p.Contains(a) })
}

// Endpoints returns the endpoints of a set.
func (p *Port) Endpoints(set model.EndpointSets) []netip.AddrPort {
	switch set {
	case model.ClusterSet:
		return p.Cluster
	case model.LocalSet:
		return p.Local
	}
	return nil
}

// RoutesTo returns the routes of traffic to a kind of destination: from this node's pods, from the node itself, and from
// elsewhere (S27, S28).
func (p *Port) RoutesTo(k Kind) (fromPod, fromNode, other model.Route) {
	if k == ClusterIP {
		return p.Routes.ClusterIP, p.Routes.ClusterIP, p.Routes.ClusterIP
	}
	return p.Routes.ExternalFromPod, p.Routes.ExternalFromNode, p.Routes.External
}

// ClusterIP returns the cluster IP, or the zero Addr if none is served.
func (p *Port) ClusterIP() netip.Addr {
	if len(p.Destinations) > 0 && p.Destinations[0].Kind == ClusterIP {
		return p.Destinations[0].Addr
	}
	return netip.Addr{}
}
