package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// service describes a service of a case, in the terms of Kubernetes. The zero value is a dual-stack service "web" with
// a cluster IP, port 80 for TCP and UDP, and no endpoints.
type service struct {
	name string
	// slot chooses the addresses and the node ports: services of one state need different ones. 0 is the place in the
	// list.
	slot      int
	families  []model.Family // default: all
	ports     []servicePort
	endpoints []endpoint

	nodePort, externalIP, vip    bool
	externalLocal, internalLocal bool
	ranges                       []sourceRange
	affinity                     time.Duration
	masqueradeAll                bool // actually of the node; it affects the routes

	created time.Time
	// The contested address is one that several services may list, as an external IP or as a VIP.
	contestsExternalIP, contestsVIP bool
}

// servicePort describes a port. The zero value of everything but the protocol is usable.
type servicePort struct {
	name     string
	protocol model.Protocol
	number   uint16 // default 80
	target   uint16 // default serverPort
	// endpoints of this port alone, instead of the service's.
	endpoints []endpoint
}

// endpoint describes an endpoint: a place that serves the service's ports.
type endpoint struct {
	at     string
	target uint16 // default: the port's
	phase  phase
	// elsewhere: topology hints keep it for other nodes or zones; it is in no cluster set of this node (S22), unless
	// all ready endpoints are for elsewhere: then hints are ignored.
	elsewhere bool
}

// phase stands for the conditions of an endpoint.
type phase int

const (
	ready phase = iota
	terminating
	unready
)

// sourceRange is a load-balancer source range, given by the places in it.
type sourceRange struct {
	place string       // only that place
	vip   bool         // the service's VIP itself
	pods  bool         // all local pods
	only  model.Family // only in this family; 0: in both
}

func at(places ...string) []endpoint {
	var eps []endpoint
	for _, p := range places {
		eps = append(eps, endpoint{at: p})
	}
	return eps
}

func inPhase(ph phase, places ...string) []endpoint {
	eps := at(places...)
	for i := range eps {
		eps[i].phase = ph
	}
	return eps
}

// The first slot.
const firstSlot = 1

func (s service) withDefaults(index int) service {
	if s.name == "" {
		s.name = "web"
	}
	if s.slot == 0 {
		s.slot = firstSlot + index
	}
	if s.families == nil {
		s.families = []model.Family{model.IPv4, model.IPv6}
	}
	if s.ports == nil {
		s.ports = []servicePort{{protocol: model.TCP}, {protocol: model.UDP}}
	}
	s.ports = slices.Clone(s.ports)
	for i := range s.ports {
		p := &s.ports[i]
		if p.name == "" {
			p.name = fmt.Sprintf("p%d", i)
		}
		if p.number == 0 {
			p.number = 80
		}
		if p.target == 0 {
			p.target = serverPort
		}
		if p.endpoints == nil {
			p.endpoints = s.endpoints
		}
		p.endpoints = slices.Clone(p.endpoints)
		for j := range p.endpoints {
			if p.endpoints[j].target == 0 {
				p.endpoints[j].target = p.target
			}
		}
	}
	return s
}

func (s service) clusterIP(f model.Family) netip.Addr { return nth(planOf(f).services, 10+s.slot) }

func (s service) externalAddr(f model.Family) netip.Addr {
	return nth(planOf(f).externalIPs, 10+s.slot)
}

func (s service) vipAddr(f model.Family) netip.Addr { return nth(planOf(f).vips, 10+s.slot) }

// contestedAddr is the address that several services may list.
func contestedAddr(f model.Family) netip.Addr { return nth(planOf(f).externalIPs, 220) }

// nodePortOf returns the node port of a port, by its place in the list.
func (s service) nodePortOf(index int) uint16 {
	return uint16(firstNodePort + 10*s.slot + index)
}

func (s service) isExternal() bool {
	return s.nodePort || s.externalIP || s.vip || s.contestsExternalIP || s.contestsVIP
}

// String names what is in the range.
func (r sourceRange) String() string {
	who := r.place
	switch {
	case r.vip:
		who = "the VIP"
	case r.pods:
		who = "the local pods"
	}
	if r.only != 0 {
		who += fmt.Sprintf(" (%v)", r.only)
	}
	return who
}

// resolve returns the range of a family, false if there is none.
func (r sourceRange) resolve(s service, f model.Family) (netip.Prefix, bool) {
	switch {
	case r.only != 0 && r.only != f:
		return netip.Prefix{}, false
	case r.vip:
		return hostPrefix(s.vipAddr(f)), true
	case r.pods:
		return planOf(f).localPods, true
	}
	return hostPrefix(placeNamed(r.place).addr(f)), true
}

// state is everything that a backend gets.
type state struct {
	node      *model.Node
	services  map[model.ServiceName]*model.Service
	endpoints map[model.EndpointKey]*model.Endpoint
}

// isExternal reports whether an address is an external IP or VIP of a service.
func (st state) isExternal(a netip.Addr) bool {
	for _, svc := range st.services {
		if slices.Contains(svc.ExternalIPs, a) || slices.Contains(svc.LoadBalancerIPs, a) {
			return true
		}
	}
	return false
}

func newState(node *model.Node) state {
	return state{node: node, services: map[model.ServiceName]*model.Service{},
		endpoints: map[model.EndpointKey]*model.Endpoint{}}
}

// buildState returns the model values for services, as package localstate would compute them for the same cluster. It
// fails if a table contradicts itself.
func buildState(set setup, families []model.Family, services []service) (state, error) {
	st := newState(set.node(families))
	slots := map[int]string{}
	for i, spec := range services {
		spec = spec.withDefaults(i)
		if other, taken := slots[spec.slot]; taken {
			return state{}, fmt.Errorf("services %s and %s have the same addresses", other, spec.name)
		}
		slots[spec.slot] = spec.name
		if err := st.add(spec, families, set.detector != undetected); err != nil {
			return state{}, err
		}
	}
	return st, nil
}

func (st state) add(spec service, families []model.Family, detects bool) error {
	svc := model.Service{
		Name:                   model.ServiceName{Namespace: "default", Name: spec.name},
		SessionAffinityTimeout: spec.affinity,
		Created:                spec.created,
	}
	if spec.internalLocal {
		svc.InternalTrafficPolicy = model.TrafficPolicyLocal
	}
	if spec.externalLocal && spec.isExternal() {
		svc.ExternalTrafficPolicy = model.TrafficPolicyLocal
	}
	for i, p := range spec.ports {
		port := model.ServicePort{Name: p.name, Protocol: p.protocol, Port: p.number}
		if spec.nodePort {
			port.NodePort = spec.nodePortOf(i)
		}
		svc.Ports = append(svc.Ports, port)
	}
	for _, f := range families {
		if !slices.Contains(spec.families, f) {
			continue
		}
		svc.ClusterIPs = append(svc.ClusterIPs, spec.clusterIP(f))
		if spec.externalIP {
			svc.ExternalIPs = append(svc.ExternalIPs, spec.externalAddr(f))
		}
		if spec.vip {
			svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, spec.vipAddr(f))
		}
		if spec.contestsExternalIP {
			svc.ExternalIPs = append(svc.ExternalIPs, contestedAddr(f))
		}
		if spec.contestsVIP {
			svc.LoadBalancerIPs = append(svc.LoadBalancerIPs, contestedAddr(f))
		}
		for _, r := range spec.ranges {
			if prefix, ok := r.resolve(spec, f); ok {
				svc.LoadBalancerSourceRanges = append(svc.LoadBalancerSourceRanges, prefix)
			}
		}
		for i, p := range spec.ports {
			routes := st.addEndpoints(spec, p, svc, f, detects)
			if f == model.IPv6 {
				svc.Ports[i].RoutesIPv6 = routes
			} else {
				svc.Ports[i].RoutesIPv4 = routes
			}
		}
	}
	if len(svc.ClusterIPs) == 0 {
		return nil // of the other family only
	}
	made, err := model.NewService(svc)
	if err != nil {
		return err
	}
	if st.services[made.Name] != nil {
		return fmt.Errorf("two services are named %v", made.Name)
	}
	st.services[made.Name] = made
	return nil
}

// addEndpoints adds a port's endpoints of a family, in the sets that S21 and S22 put them in, and returns the routes.
func (st state) addEndpoints(spec service, p servicePort, svc model.Service, f model.Family,
	detects bool) model.Routes {
	isLocal := func(e endpoint) bool {
		kind := placeNamed(e.at).kind
		return e.at == theNode || kind == oracle.LocalPod
	}
	has := func(match func(endpoint) bool) bool { return slices.ContainsFunc(p.endpoints, match) }
	anyReady := has(func(e endpoint) bool { return e.phase == ready })
	localReady := has(func(e endpoint) bool { return e.phase == ready && isLocal(e) })
	usable := has(func(e endpoint) bool { return e.phase != unready })
	// Hints are used only if they leave this node an endpoint (S22).
	hinted := has(func(e endpoint) bool { return e.phase == ready && !e.elsewhere })

	routes := model.NewRoutes(model.RoutePolicy{
		Internal: svc.InternalTrafficPolicy, External: svc.ExternalTrafficPolicy,
		ClusterIP: true, ExternalAddresses: spec.isExternal(),
		NoEndpoints: !usable, DetectsLocalPods: detects, MasqueradeAll: spec.masqueradeAll,
	})
	for _, e := range p.endpoints {
		place := placeNamed(e.at)
		ep := &model.Endpoint{
			Port:   model.PortName{Service: svc.Name, Port: p.name, Protocol: p.protocol},
			Target: netip.AddrPortFrom(place.addr(f), e.target),
			Node:   otherNode, Local: isLocal(e),
			Ready: e.phase == ready, Serving: e.phase != unready, Terminating: e.phase == terminating,
		}
		if ep.Local {
			ep.Node = theNode
		}
		if e.phase == ready && (!e.elsewhere || !hinted) || e.phase == terminating && !anyReady {
			ep.Sets |= model.ClusterSet
		}
		if ep.Local && (e.phase == ready || e.phase == terminating && !localReady) {
			ep.Sets |= model.LocalSet
		}
		ep.Sets &= routes.Sets()
		// Endpoints without traffic are handed over only for UDP, because of their existing flows (S40).
		if ep.Sets != 0 || ep.Serving && p.protocol == model.UDP {
			st.endpoints[ep.Key()] = ep
		}
	}
	return routes
}
