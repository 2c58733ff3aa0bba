package oracle

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Oracle answers for one state and configuration. It may be used by several goroutines at once.
type Oracle struct {
	node      *model.Node
	services  iter.Seq[*model.Service]
	endpoints iter.Seq[*model.Endpoint]
	// endpointsOf returns the endpoints of a service port, in [model.CompareTargets] order.
	endpointsOf func(model.PortName) []*model.Endpoint
	config      Config
	// manyHosts returns config.HostAddresses, if they are so many that going through them each time would be slow.
	manyHosts func() map[netip.Addr]struct{}
}

// New returns the oracle for a state, which it keeps and does not change. It fails if the state contradicts itself.
func New(state State, config Config) (*Oracle, error) {
	if err := state.validate(); err != nil {
		return nil, fmt.Errorf("oracle: %w", err)
	}
	byPort := map[model.PortName][]*model.Endpoint{}
	for _, ep := range state.Endpoints {
		byPort[ep.Port] = append(byPort[ep.Port], ep)
	}
	for _, eps := range byPort {
		slices.SortFunc(eps, func(a, b *model.Endpoint) int { return model.CompareTargets(a.Target, b.Target) })
	}
	return newOracle(&Oracle{node: state.Node, config: config, services: slices.Values(state.Services),
		endpoints:   slices.Values(state.Endpoints),
		endpointsOf: func(port model.PortName) []*model.Endpoint { return byPort[port] }})
}

// OfSnapshot returns the oracle for a snapshot. It is cheap: the services are read only when a question is answered,
// and endpoints only of services that the flow may be for. Endpoints that belong to no service port are never in an
// answer.
func OfSnapshot(s *sink.Snapshot, config Config) (*Oracle, error) {
	return newOracle(&Oracle{node: s.Node(), config: config,
		services: func(yield func(*model.Service) bool) {
			for e := range s.Services() {
				if !yield(e.Service) {
					return
				}
			}
		},
		endpoints: func(yield func(*model.Endpoint) bool) {
			for e := range s.Services() {
				for _, ep := range e.Endpoints {
					if !yield(ep) {
						return
					}
				}
			}
		},
		endpointsOf: func(port model.PortName) []*model.Endpoint {
			if e := s.Service(port.Service); e != nil {
				return e.PortEndpoints(port.Port, port.Protocol)
			}
			return nil
		}})
}

func newOracle(o *Oracle) (*Oracle, error) {
	if o.node == nil {
		return nil, errors.New("oracle: the state has no node")
	}
	if len(o.config.HostAddresses) == 0 {
		o.config.HostAddresses = o.node.IPs
	}
	const many = 16
	if hosts := o.config.HostAddresses; len(hosts) > many {
		o.manyHosts = sync.OnceValue(func() map[netip.Addr]struct{} { return setOf(hosts) })
	}
	return o, nil
}

func setOf(list []netip.Addr) map[netip.Addr]struct{} {
	set := make(map[netip.Addr]struct{}, len(list))
	for _, a := range list {
		set[a] = struct{}{}
	}
	return set
}

// Expect says what must happen to a new flow. It returns an error if f is not valid.
func (o *Oracle) Expect(f Flow) (Outcome, error) {
	if err := f.validate(); err != nil {
		return Outcome{}, err
	}
	claims := o.claims(f)
	if len(claims) == 0 {
		return o.unclaimed(f), nil
	}
	out := o.decide(f, claims[0])
	if claims[0].kind == nodePort && o.mayServeNodePorts(f.Destination.Addr()) {
		out.AlsoAllowed = append(out.AlsoAllowed, Outcome{Flow: f, Verdict: NotOurs,
			Reasons: []Reason{{"\"primary\" may mean the first address of the family alone", "S35"}}})
	}
	for _, c := range claims[1:] {
		if c.kind.rank() == claims[0].kind.rank() {
			other := o.decide(f, c)
			alternatives := other.AlsoAllowed
			other.AlsoAllowed = nil
			out.AlsoAllowed = append(append(out.AlsoAllowed, other), alternatives...)
		}
	}
	return out, nil
}

// addressKind is the kind of address that a destination is for a service port.
type addressKind uint8

const (
	clusterIP addressKind = iota
	externalIP
	loadBalancerIP
	nodePort
)

// indefinite returns the kind with an article.
func (k addressKind) indefinite() string {
	return [...]string{"a cluster IP", "an external IP", "a load-balancer VIP", "a node port"}[k]
}

// rule returns the rule by which a service has an address of this kind.
func (k addressKind) rule() string { return [...]string{"S3", "S6", "S7", "S35"}[k] }

// rank orders the kinds of a destination that has several: a cluster IP belongs to its service alone. It does not
// decide which of two services owns an external IP or VIP that both list, or one that is also a node address, with a
// node port of the other: that depends on which had it first, and on their age (S59).
func (k addressKind) rank() int { return min(int(k), 1) }

// claim is a service port that a flow's destination belongs to.
type claim struct {
	service *model.Service
	port    model.ServicePort
	kind    addressKind
}

// claims returns the service ports that a flow may be for, beginning with the one that should get it.
func (o *Oracle) claims(f Flow) []claim {
	var claims []claim
	for svc := range o.services {
		for _, port := range svc.Ports {
			if port.Protocol != f.Protocol {
				continue
			}
			for _, kind := range o.kinds(svc, port, f.Destination) {
				claims = append(claims, claim{svc, port, kind})
			}
		}
	}
	slices.SortStableFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), a.service.Name.Compare(b.service.Name))
	})
	return claims
}

// kinds returns which kinds of address of a service port a destination is, usually one or none.
func (o *Oracle) kinds(svc *model.Service, port model.ServicePort, to netip.AddrPort) []addressKind {
	var kinds []addressKind
	routes := *port.Routes.At(model.FamilyOf(to.Addr()))
	if to.Port() == port.Port {
		if routes.ClusterIP.Endpoints != 0 && slices.Contains(svc.ClusterIPs, to.Addr()) {
			kinds = append(kinds, clusterIP)
		}
		if routes.External.Endpoints != 0 && slices.Contains(svc.ExternalIPs, to.Addr()) {
			kinds = append(kinds, externalIP)
		}
		if routes.External.Endpoints != 0 && slices.Contains(svc.LoadBalancerIPs, to.Addr()) {
			kinds = append(kinds, loadBalancerIP)
		}
	}
	if routes.External.Endpoints != 0 && to.Port() == port.NodePort && o.servesNodePorts(to.Addr()) &&
		!(o.isProxied(to.Addr()) && port.Protocol == model.SCTP) {
		kinds = append(kinds, nodePort)
	}
	return kinds
}

// unclaimed decides about flows that are for no service port.
func (o *Oracle) unclaimed(f Flow) Outcome {
	to := f.Destination.Addr()
	outcome := func(v Verdict, format string, args ...any) Outcome {
		return Outcome{Flow: f, Verdict: v, Reasons: []Reason{{fmt.Sprintf(format, args...), "S33"}}}
	}
	leftAlone := outcome(NotOurs, "backends need not guard the service CIDRs")
	for svc := range o.services {
		if slices.Contains(svc.ClusterIPs, to) {
			out := outcome(Reject, "%v is the cluster IP of %v, which has no port %d/%v", to, svc.Name,
				f.Destination.Port(), f.Protocol)
			out.AlsoAllowed = []Outcome{leftAlone}
			return out
		}
	}
	for _, cidr := range o.node.ServiceCIDRs {
		if cidr.Contains(to) {
			out := outcome(Drop, "%v is in the service CIDR %v and no service has it as its cluster IP", to,
				cidr)
			out.AlsoAllowed = []Outcome{leftAlone,
				outcome(Reject, "a node to which the whole range belongs refuses instead")}
			return out
		}
	}
	return Outcome{Flow: f, Verdict: NotOurs, Reasons: o.whyNotOurs(f)}
}

// whyNotOurs explains the cases that might be mistaken for a service.
func (o *Oracle) whyNotOurs(f Flow) []Reason {
	for svc := range o.services {
		for _, port := range svc.Ports {
			if port.NodePort == f.Destination.Port() && port.Protocol == f.Protocol &&
				o.isHostAddress(f.Destination.Addr()) {
				why := []Reason{{fmt.Sprintf("%v has a node port %d/%v, but none is served on %v",
					svc.PortName(port), port.NodePort, port.Protocol, f.Destination.Addr()), "S35"}}
				if f.Destination.Addr().IsLoopback() {
					why = append(why, Reason{"on loopback addresses that is an option", "S36"})
				}
				return why
			}
		}
	}
	for ep := range o.endpoints {
		if ep.Target == f.Destination && ep.Port.Protocol == f.Protocol {
			return []Reason{{Text: fmt.Sprintf("%v/%v is an endpoint of %v itself", f.Destination, f.Protocol,
				ep.Port)}}
		}
	}
	return []Reason{{Text: fmt.Sprintf("no service has %v/%v", f.Destination, f.Protocol)}}
}

func (o *Oracle) isHostAddress(addr netip.Addr) bool {
	return addr.IsLoopback() || o.isOnInterface(addr)
}

// isOnInterface reports whether an address is one of the host's network interfaces.
func (o *Oracle) isOnInterface(addr netip.Addr) bool {
	if o.manyHosts != nil {
		_, is := o.manyHosts()[addr]
		return is
	}
	return slices.Contains(o.config.HostAddresses, addr)
}

// decide says what happens to a flow that is for a service port.
func (o *Oracle) decide(f Flow, c claim) Outcome {
	traffic, rule, route := o.route(f, c)
	out := Outcome{Flow: f, Port: c.service.PortName(c.port), Route: route,
		AffinityTimeout: c.service.SessionAffinityTimeout}
	claimed := Reason{fmt.Sprintf("%v/%v is %s of %v", f.Destination, f.Protocol, c.kind.indefinite(), out.Port),
		c.kind.rule()}
	out.Reasons = append(out.Reasons, claimed, Reason{traffic + ": " + setText(route.Endpoints), rule})

	translated, why := o.masquerades(f, c, route)
	for _, ep := range o.endpointsOf(out.Port) {
		if ep.Family() == f.Family() && ep.Sets.Has(route.Endpoints) {
			hairpin := ep.Target.Addr() == f.Source
			if hairpin {
				why = append(why, Reason{fmt.Sprintf("endpoint %v is the source itself: masqueraded", ep.Target),
					"S29"})
			}
			out.Endpoints = append(out.Endpoints, Destination{Endpoint: ep.Target, SourceNAT: translated || hairpin,
				Node: ep.Node, Pod: podOf(ep)})
		}
	}
	switch {
	case len(out.Endpoints) > 0:
		out.Verdict = Deliver
		out.Reasons = append(out.Reasons, why...)
		if out.AffinityTimeout > 0 {
			out.Reasons = append(out.Reasons,
				Reason{fmt.Sprintf("a client stays with its endpoint for %v", out.AffinityTimeout), "S32"})
		}
	case route.Empty == model.Drop:
		out.Verdict = Drop
		out.Reasons = append(out.Reasons, Reason{fmt.Sprintf("the %v set is empty: drop", route.Endpoints), "S25"})
	default:
		out.Verdict = Reject
		out.Reasons = append(out.Reasons, Reason{fmt.Sprintf("the %v set is empty: reject", route.Endpoints), "S25"})
	}

	if c.kind == loadBalancerIP && !allowed(c.service.SourceRanges(f.Family()), f.Source) {
		blocked := out
		blocked.Verdict, blocked.Endpoints = Drop, nil
		blocked.Reasons = []Reason{claimed,
			{fmt.Sprintf("%v is not in the source ranges of the service", f.Source), "S26"}}
		if out.Verdict == Reject {
			out.Reasons = append(out.Reasons,
				Reason{"backends may find the set empty before they look at source ranges", "S26"})
			blocked.AlsoAllowed = []Outcome{out}
		}
		return blocked
	}
	return out
}

// setText returns the set that a route balances over, in words.
func setText(set model.EndpointSets) string {
	if set == model.LocalSet {
		return "to endpoints on this node only (the Local set)"
	}
	return fmt.Sprintf("to endpoints on any node (the %v set)", set)
}

// podOf returns the "namespace/name" of an endpoint's pod, or "" if the state does not have it.
func podOf(ep *model.Endpoint) string {
	if ref := ep.Details.Get().TargetRef; ref.Kind == "Pod" {
		return ref.Namespace + "/" + ref.Name
	}
	return ""
}

// route returns the route for a flow, with the name of the kind of traffic, and the rule (S21, S27).
func (o *Oracle) route(f Flow, c claim) (traffic, rule string, r model.Route) {
	routes := *c.port.Routes.At(f.Family())
	switch {
	case c.kind == clusterIP:
		return "traffic to a cluster IP, whoever sends it", "S21", routes.ClusterIP
	case o.isProxied(f.Destination.Addr()):
		return "external traffic to a loopback address", "S36a", model.Route{Endpoints: routes.External.Endpoints,
			Masquerade: model.MasqueradeAlways, Empty: model.Reject}
	case o.seenAsLocalPod(f):
		return "external traffic from a pod of this node", "S27", routes.ExternalFromPod
	case f.From == Node:
		return "external traffic from the node itself", "S27", routes.ExternalFromNode
	}
	return "external traffic from outside the node", "S27", routes.External
}

// seenAsLocalPod reports whether the detector treats the source as a pod of this node (S30): an interface is reliable,
// but a CIDR matches every source with such an address.
func (o *Oracle) seenAsLocalPod(f Flow) bool {
	d := o.node.LocalPods
	if d.Bridge != "" || d.InterfacePrefix != "" {
		return f.From == LocalPod
	}
	return contain(d.CIDRs, f.Source)
}

// masquerades reports whether a route translates the source of a flow (S27, S28), and why.
func (o *Oracle) masquerades(f Flow, c claim, r model.Route) (translated bool, why []Reason) {
	rule := "S27"
	if c.kind == clusterIP {
		rule = "S28"
	}
	switch r.Masquerade {
	case model.MasqueradeAlways:
		return true, []Reason{{"always masqueraded: the endpoint sees an address of the node", rule}}
	case model.MasqueradeNever:
		return false, []Reason{{"never masqueraded: the endpoint sees the client's address", rule}}
	}
	why = []Reason{{"masqueraded unless the source is a pod of this node", rule}}
	if o.seenAsLocalPod(f) {
		return false, append(why, Reason{fmt.Sprintf("%v passes for a local pod", f.Source), "S30"})
	}
	return true, append(why, Reason{fmt.Sprintf("%v does not pass for a local pod", f.Source), "S30"})
}

// allowed reports whether source ranges allow a source. Without ranges every source is allowed.
func allowed(ranges []netip.Prefix, source netip.Addr) bool {
	return len(ranges) == 0 || contain(ranges, source)
}

func contain(ranges []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}
