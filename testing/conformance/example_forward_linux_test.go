package conformance_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// simulation is a dataplane in memory: a table of frontends, and a function that looks a packet up in it.
type simulation struct {
	env       conformance.Env
	node      *model.Node
	frontends map[model.Family]map[frontend.Key]entry
}

// entry is the simulation's entry for a frontend.
type entry struct {
	frontend.Frontend
	port      *frontend.Port
	endpoints map[model.EndpointSets][]netip.AddrPort
}

// start starts to serve the simulation. It is the Factory's New.
func (s *simulation) start(_ context.Context, env conformance.Env) (sink.Sink, error) {
	s.env, s.frontends = env, map[model.Family]map[frontend.Key]entry{}
	return frontend.New(frontend.Options{Families: env.Families, Apply: s.apply, NodePortAddresses: s.nodePorts})
}

// nodePorts returns the addresses of a family that serve node ports, which an external IP may contest (S59).
func (s *simulation) nodePorts(_ *model.Node, f model.Family) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(s.env.NodePortAddresses), func(a netip.Addr) bool {
		return model.FamilyOf(a) != f
	})
}

// apply rebuilds the table of one family, which is simple but too slow for a real backend.
func (s *simulation) apply(_ context.Context, c *frontend.Changes) error {
	table := map[frontend.Key]entry{}
	for p := range c.All().Ports() {
		endpoints := map[model.EndpointSets][]netip.AddrPort{}
		for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
			for _, ep := range p.Endpoints(set) {
				endpoints[set] = append(endpoints[set], ep.Target)
			}
		}
		for fr := range p.Frontends() {
			table[fr.Key] = entry{fr, p.After, endpoints}
		}
	}
	s.node, s.frontends[c.Family()] = c.Node(), table
	return nil
}

// forward returns the result of a packet. It is the Forward of Simulate.
func (s *simulation) forward(f oracle.Flow, sourcePort uint16) oracle.Observation {
	key := frontend.Key{Addr: f.Destination.Addr(), Port: f.Destination.Port(), Protocol: f.Protocol}
	e, ok := s.frontends[f.Family()][key]
	if !ok && slices.Contains(s.env.NodePortAddresses, key.Addr) {
		key.Addr = netip.Addr{}
		e, ok = s.frontends[f.Family()][key]
	}
	from := func(p netip.Prefix) bool { return p.Contains(f.Source) }
	switch {
	case !ok:
		return oracle.Observation{Verdict: oracle.NotOurs}
	case e.Restricted && !slices.ContainsFunc(e.port.SourceRanges, from):
		return oracle.Observation{Verdict: oracle.Drop}
	}
	localPod := slices.ContainsFunc(s.node.LocalPods.CIDRs, from)
	routes := e.port.RoutesOf(e.Kind)
	route := routes.Other
	switch {
	case localPod:
		route = routes.FromPod
	case f.From == oracle.Node:
		route = routes.FromNode
	}
	endpoints := e.endpoints[route.Endpoints]
	switch {
	case len(endpoints) == 0 && route.Empty == model.Drop:
		return oracle.Observation{Verdict: oracle.Drop}
	case len(endpoints) == 0:
		return oracle.Observation{Verdict: oracle.Reject}
	}
	to := endpoints[int(sourcePort)%len(endpoints)]
	source := f.Source
	if route.Masquerade == model.MasqueradeAlways || route.Masquerade == model.MasqueradeUnlessLocalPod && !localPod ||
		to.Addr() == f.Source {
		source = s.node.IP(f.Family())
	}
	return oracle.Observation{Verdict: oracle.Deliver, Endpoint: to, Source: source}
}

// factory describes the backend to the suite. A simulation need not pass cases that need real packets.
func (s *simulation) factory() conformance.Factory {
	return conformance.Factory{New: s.start, Lacks: []conformance.Feature{
		conformance.SessionAffinity, conformance.LoopbackNodePorts, conformance.UnusedAddresses,
	}, Waives: []string{
		"local pods are known by the bridge that they are behind",
		"local pods are known by the names of their interfaces",
	}}
}

// A backend whose dataplane is a function needs neither root nor Linux's network to be judged. In a test:
//
//	func TestSimulatedConformance(t *testing.T) {
//		s := &simulation{}
//		conformance.Simulate(t, s.factory(), s.forward)
//		conformance.SimulateRandom(t, s.factory(), s.forward, 1, 200)
//	}
//
// The suite then feeds it states, and asks about packets, as here:
func ExampleForward() {
	s := &simulation{}
	backend, err := s.start(context.Background(), conformance.Env{Families: []model.Family{model.IPv4}})
	if err != nil {
		fmt.Println(err)
		return
	}
	backend.(sink.NodeSetter).SetNode(&model.Node{Name: "n1", IPs: []netip.Addr{netip.MustParseAddr("172.18.0.2")}})
	web := model.ServiceName{Namespace: "default", Name: "web"}
	service, err := model.NewService(model.Service{
		Name:       web,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []model.ServicePort{{Protocol: model.TCP, Port: 80}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ask := func() {
		if err := backend.Sync(context.Background()); err != nil {
			fmt.Println(err)
		}
		for _, to := range []string{"10.96.0.10:80", "10.96.0.10:443"} {
			flow := oracle.Flow{From: oracle.LocalPod, Source: netip.MustParseAddr("10.1.0.5"),
				Destination: netip.MustParseAddrPort(to), Protocol: model.TCP}
			fmt.Printf("%v: %v\n", to, s.forward(flow, 40000))
		}
	}
	backend.SetService(service)
	ask()
	backend.SetEndpoint(&model.Endpoint{Port: model.PortName{Service: web, Protocol: model.TCP},
		Target: netip.MustParseAddrPort("10.1.0.9:8080"), Sets: model.ClusterSet})
	ask()
	// Output:
	// 10.96.0.10:80: reject
	// 10.96.0.10:443: not ours
	// 10.96.0.10:80: delivered to 10.1.0.9:8080, which saw 10.1.0.5
	// 10.96.0.10:443: not ours
}
