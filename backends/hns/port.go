package hns

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// target is an endpoint of a service port, before its HNS endpoint is looked up.
type target struct {
	addr     netip.Addr
	local    bool
	anywhere bool // its node is not known
}

// spec is a wanted load balancer before its endpoints are looked up.
type spec struct {
	kind    kind
	targets []target // none: no load balancer is wanted
	root    bool     // the endpoint is the node's own, instead
	// vip: in overlay networks the address needs an endpoint, too.
	vip          bool
	targetPort   uint16
	distribution dp.Distribution
	flags        dp.Flags
	portFlags    dp.PortFlags
}

func (s *spec) isEmpty() bool { return s == nil || len(s.targets) == 0 && !s.root }

// change applies the changes of a service port to the wanted state.
func (f *family) change(ctx context.Context, c *frontend.PortChange) {
	if c.After == nil {
		f.forget(c.Before.Name)
		return
	}
	name := c.After.Name
	specs, lacks := f.specs(c)
	f.unsupported.tell(ctx, f.key, name, lacks)
	if _, known := f.ports[name]; !known {
		f.unsupported.ports.Add(name.Service)
	}
	f.withdraw(name)
	keys := slices.SortedFunc(maps.Keys(specs), dp.Key.Compare)
	f.ports[name] = keys
	for _, key := range keys {
		b := f.balancers[key]
		if b == nil {
			b = &balancer{key: key, asked: map[model.PortName]*spec{}}
			f.balancers[key] = b
		}
		b.asked[name] = specs[key]
		f.dirty[b] = true
	}
}

// forget forgets a service port that is gone.
func (f *family) forget(name model.PortName) {
	if _, known := f.ports[name]; !known {
		return
	}
	f.withdraw(name)
	delete(f.ports, name)
	if u := f.unsupported; u.ports.Remove(name.Service) {
		delete(u.told, name.Service)
	}
}

// withdraw withdraws what a service port asked for.
func (f *family) withdraw(name model.PortName) {
	for _, key := range f.ports[name] {
		b := f.balancers[key]
		b.last = b.asked[name].kind
		delete(b.asked, name)
		f.dirty[b] = true
	}
}

// servesExternal reports whether HNS has a load balancer for a node port, a VIP or an external IP of a service port.
func (f *family) servesExternal(name model.PortName) bool {
	return slices.ContainsFunc(f.ports[name], func(key dp.Key) bool {
		b := f.balancers[key]
		kind := b.asked[name].kind
		return b.have != nil && kind != ofClusterIP && kind != ofHealthCheck
	})
}

// specs returns the load balancers that a service port asks for, and what HNS lacks for them.
func (f *family) specs(c *frontend.PortChange) (specs map[dp.Key]*spec, missing []capability) {
	p := c.After
	lacks := func(what capability) {
		if !slices.Contains(missing, what) {
			missing = append(missing, what)
		}
	}
	if p.Name.Protocol == model.SCTP {
		return nil, []capability{sctp}
	}
	if p.AffinityTimeout > 0 {
		if f.features.SessionAffinity {
			lacks(affinityTimeout)
		} else {
			lacks(noAffinity)
		}
	}
	specs = map[dp.Key]*spec{}
	chosen := map[choice]spec{}
	for fr := range c.Frontends() {
		if fr.Restricted {
			lacks(sourceRanges)
		}
		s := f.frontend(c, fr, chosen, lacks)
		specs[dp.Key{Family: f.key, Addr: fr.Addr, Port: fr.Port, Protocol: fr.Protocol}] = s
		if fr.Kind == frontend.LoadBalancerIP && f.options.RootEndpoint != "" && !s.isEmpty() {
			if key, hc := f.healthCheck(p, fr.Addr); hc != nil {
				if _, taken := specs[key]; !taken {
					specs[key] = hc
				}
			}
		}
	}
	return specs, missing
}

// frontend returns the load balancer of a frontend (S53, S55):
//
//	kind              endpoints             DSR              other flags
//	cluster IP        those of the route    by option
//	node port         those of the route    policy Local     LocalRoutedVIP, VIPExternalIP
//	external IP       those of the route    policy Local     VIPExternalIP
//	load-balancer IP  those of the route    policy Local     VIPExternalIP
//
// With the annotation preserve-destination node ports and load-balancer IPs keep to local endpoints, and the latter
// have DSR, UseMux and PreserveDIP.
func (f *family) frontend(c *frontend.PortChange, fr frontend.Frontend, chosen map[choice]spec,
	lacks func(capability)) *spec {
	p := c.After
	routes := p.RoutesOf(fr.Kind)
	route := routes.Other
	s := &spec{kind: kindOf(fr.Kind), vip: fr.Kind == frontend.ClusterIP}
	if p.AffinityTimeout > 0 && f.features.SessionAffinity {
		s.distribution = dp.BySource
	}
	if f.key == model.IPv6 {
		s.flags |= dp.IPv6
	}
	if fr.Kind != frontend.ClusterIP {
		s.portFlags |= dp.VIPExternalIP
	}
	if fr.Kind == frontend.NodePort {
		s.portFlags |= dp.LocalRoutedVIP
	}
	// extraOf makes all of these.
	preserve := p.Extra.(extra).preserveDestination && f.features.DSR
	onlyLocal := preserve && (fr.Kind == frontend.NodePort || fr.Kind == frontend.LoadBalancerIP)
	dsr := fr.Kind == frontend.ClusterIP && f.options.DSR
	if fr.Kind != frontend.ClusterIP && route.Endpoints == model.LocalSet {
		dsr = true
		if !f.features.DSR {
			lacks(noDSR)
		}
		if routes.FromNode.Endpoints != route.Endpoints || routes.FromPod.Endpoints != route.Endpoints {
			lacks(sourceRoutes)
		}
	}
	if preserve && fr.Kind == frontend.LoadBalancerIP {
		dsr = true
		s.portFlags |= dp.UseMux | dp.PreserveDIP
	}
	if dsr && f.features.DSR {
		s.flags |= dp.DSR
	}
	// Thousands of addresses of a port share the list of its endpoints.
	by := choice{route.Endpoints, onlyLocal}
	if _, known := chosen[by]; !known {
		var one spec
		one.choose(c.Endpoints(by.set), by.onlyLocal, f.nodeIPs, lacks)
		chosen[by] = one
	}
	s.targets, s.targetPort = chosen[by].targets, chosen[by].targetPort
	return s
}

// choice is what the endpoints of a frontend depend on, in one service port.
type choice struct {
	set       model.EndpointSets
	onlyLocal bool
}

// choose takes the endpoints that a load balancer can have: those with the most frequent target port, or with the
// lowest of several such ports. HNS would send clients to that port of the others, too, which may not listen there.
func (s *spec) choose(endpoints []*model.Endpoint, onlyLocal bool, nodeIPs []netip.Addr, lacks func(capability)) {
	counts := map[uint16]int{}
	usable := func(e *model.Endpoint) bool {
		return (e.Local || !onlyLocal) && !(e.Local && slices.Contains(nodeIPs, e.Target.Addr()))
	}
	for _, e := range endpoints {
		if e.Local && slices.Contains(nodeIPs, e.Target.Addr()) {
			lacks(host)
		}
		if usable(e) {
			counts[e.Target.Port()]++
		}
	}
	if len(counts) == 0 {
		return
	}
	if len(counts) > 1 {
		lacks(ports)
	}
	s.targetPort = slices.MaxFunc(slices.Collect(maps.Keys(counts)), func(a, b uint16) int {
		return cmp.Or(cmp.Compare(counts[a], counts[b]), cmp.Compare(b, a))
	})
	for _, e := range endpoints {
		if usable(e) && e.Target.Port() == s.targetPort {
			s.targets = append(s.targets, target{e.Target.Addr(), e.Local, !e.Local && e.Node == ""})
		}
	}
}

// healthCheck returns the load balancer that sends health checks at a VIP to the node itself, nil if there is none.
func (f *family) healthCheck(p *frontend.Port, vip netip.Addr) (dp.Key, *spec) {
	e := p.Extra.(extra)
	number := e.healthCheckNodePort
	if number == 0 {
		number = f.options.HealthzPort
	}
	if number == 0 {
		return dp.Key{}, nil
	}
	s := &spec{kind: ofHealthCheck, root: true, targetPort: number}
	if f.key == model.IPv6 {
		s.flags = dp.IPv6
	}
	if e.preserveDestination && f.features.DSR {
		s.portFlags = dp.UseMux | dp.PreserveDIP
	}
	return dp.Key{Family: f.key, Addr: vip, Port: number, Protocol: model.TCP}, s
}

// Unsupported is the reason of a [frontend.Problem] about a feature of a service that HNS does not support.
const Unsupported frontend.Reason = "UnsupportedByHNS"

// capability is something that services may ask for and that HNS cannot do, or not in every version.
type capability string

const (
	sctp            capability = "SCTP ports are not served"
	noAffinity      capability = "session affinity: this version of Windows chooses an endpoint for each connection"
	affinityTimeout capability = "session affinity is a hash of the client's address: it has no timeout, and a " +
		"client may get another endpoint when the endpoints change"
	sourceRanges capability = "load-balancer source ranges: the load-balancer IPs are open to all sources"
	sourceRoutes capability = "external traffic policy Local: pods of the node, and the node itself, reach the node's " +
		"endpoints alone, as everybody does"
	noDSR capability = "external traffic policy Local: this version of Windows cannot keep the source of connections"
	ports capability = "endpoints with different target ports: only those with the most frequent one are used"
	host  capability = "endpoints in the network of this node itself are not used: HNS has no endpoint for them"
)

// unsupported reports, once for each service, features that HNS does not support.
type unsupported struct {
	onProblem func(context.Context, frontend.Problem)
	told      map[model.ServiceName]map[capability]bool // forgotten with the last port of the service
	ports     frontend.RefCounts[model.ServiceName]     // wanted at present, in all families
}

func newUnsupported(onProblem func(context.Context, frontend.Problem)) *unsupported {
	return &unsupported{onProblem: onProblem, told: map[model.ServiceName]map[capability]bool{}}
}

// tell logs and reports what HNS cannot do for a service port.
func (u *unsupported) tell(ctx context.Context, f model.Family, p model.PortName, list []capability) {
	for _, c := range list {
		if u.told[p.Service][c] {
			continue
		}
		if u.told[p.Service] == nil {
			u.told[p.Service] = map[capability]bool{}
		}
		u.told[p.Service][c] = true
		klog.FromContext(ctx).Info("HNS does not support everything that a service requests", "service", p.Service,
			"what", string(c))
		if u.onProblem != nil {
			u.onProblem(ctx, frontend.Problem{Family: f, Port: p, Reason: Unsupported, Message: string(c)})
		}
	}
}
