package oracle

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// The addresses of the tests: node n1, with a second host address; its pod; a pod of another node; a client outside.
const (
	nodeIP, nodeIP2, nodeIP6 = "172.18.0.2", "192.168.9.2", "fd18::2"
	localPod, localPod6      = "10.244.1.5", "fd44:1::5"
	remotePod, remotePod6    = "10.244.2.5", "fd44:2::5"
	clientPod, clientPod6    = "10.244.1.9", "fd44:1::9" // of this node, and not an endpoint
	client, client6          = "203.0.113.7", "2001:db8::7"
)

// fixture is a node and the service default/web: port 80 and node port 30080 at every kind of address, dual-stack, with
// a local and a remote endpoint in the cluster set.
type fixture struct {
	node      model.Node
	config    Config
	policy    model.RoutePolicy
	service   model.Service
	endpoints []*model.Endpoint
	others    []*model.Service
	// Routes are computed from policy, unless noRoutes is set.
	noRoutes bool
}

func newFixture() *fixture {
	f := &fixture{
		node: model.Node{
			Name:         "n1",
			IPs:          []netip.Addr{addr(nodeIP), addr(nodeIP6)},
			ServiceCIDRs: []netip.Prefix{prefix("10.96.0.0/16"), prefix("fd96::/108")},
			LocalPods:    model.LocalPods{CIDRs: []netip.Prefix{prefix("10.244.1.0/24"), prefix("fd44:1::/64")}},
		},
		config: Config{HostAddresses: []netip.Addr{addr(nodeIP), addr(nodeIP2), addr(nodeIP6)}},
		policy: model.RoutePolicy{ClusterIP: true, ExternalAddresses: true},
		service: model.Service{
			Name:            model.ServiceName{Namespace: "default", Name: "web"},
			ClusterIPs:      []netip.Addr{addr("10.96.0.10"), addr("fd96::10")},
			ExternalIPs:     []netip.Addr{addr("198.51.100.10"), addr("2001:db8:10::10")},
			LoadBalancerIPs: []netip.Addr{addr("198.51.100.20"), addr("2001:db8:10::20")},
			Ports:           []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080}},
		},
	}
	f.setEndpoints(local(localPod, cluster|locally), remote(remotePod, cluster))
	return f
}

const cluster, locally = model.ClusterSet, model.LocalSet

// local and remote make endpoints of default/web:http/TCP at port 8080.
func local(ip string, sets model.EndpointSets) *model.Endpoint { return endpoint(ip, true, sets) }

func remote(ip string, sets model.EndpointSets) *model.Endpoint { return endpoint(ip, false, sets) }

func endpoint(ip string, isLocal bool, sets model.EndpointSets) *model.Endpoint {
	name := model.PortName{Service: model.ServiceName{Namespace: "default", Name: "web"}, Port: "http",
		Protocol: model.TCP}
	return &model.Endpoint{Port: name, Target: netip.AddrPortFrom(addr(ip), 8080), Local: isLocal, Ready: true,
		Serving: true, Sets: sets}
}

func (f *fixture) setEndpoints(endpoints ...*model.Endpoint) { f.endpoints = endpoints }

// bare makes a service of the fixture's policy that has one TCP port and the addresses that the caller gives it.
func (f *fixture) bare(name string, port uint16, set func(*model.Service)) {
	svc := &model.Service{
		Name:  model.ServiceName{Namespace: "default", Name: name},
		Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: port}},
	}
	set(svc)
	policy := f.policy
	policy.NoEndpoints = true
	f.setRoutes(svc, policy)
	f.others = append(f.others, svc)
}

func (f *fixture) setRoutes(svc *model.Service, policy model.RoutePolicy) {
	for i := range svc.Ports {
		policy.DetectsLocalPods = f.node.LocalPods.Detects(model.IPv4)
		svc.Ports[i].Routes.IPv4 = model.NewRoutes(policy)
		policy.DetectsLocalPods = f.node.LocalPods.Detects(model.IPv6)
		svc.Ports[i].Routes.IPv6 = model.NewRoutes(policy)
	}
}

func (f *fixture) oracle(t testing.TB) *Oracle {
	t.Helper()
	if !f.noRoutes {
		f.setRoutes(&f.service, f.policy)
	}
	o, err := New(f.state(), f.config)
	require.NoError(t, err)
	return o
}

func (f *fixture) state() State {
	return State{Node: &f.node, Services: append(slices.Clone(f.others), &f.service), Endpoints: f.endpoints}
}

// flow parses "local pod 10.244.1.9 -> 10.96.0.10:80/TCP".
func flow(t testing.TB, text string) Flow {
	t.Helper()
	source, to, found := strings.Cut(text, " -> ")
	require.True(t, found, text)
	var f Flow
	for _, kind := range []SourceKind{LocalPod, Node, RemotePod, External} {
		if ip, ok := strings.CutPrefix(source, kind.String()+" "); ok {
			f.From, f.Source = kind, addr(ip)
		}
	}
	to, protocol, found := strings.Cut(to, "/")
	require.True(t, found, text)
	f.Destination = netip.MustParseAddrPort(to)
	var err error
	f.Protocol, err = model.ParseProtocol(protocol)
	require.NoError(t, err)
	return f
}

// brief returns an outcome without the reasons: "deliver to A or B (source NAT)", with alternatives after " | ".
func brief(o Outcome) string {
	all := append([]Outcome{o}, o.AlsoAllowed...)
	texts := make([]string, len(all))
	for i, o := range all {
		texts[i] = o.brief()
	}
	return strings.Join(texts, " | ")
}

// deliver writes what brief returns for endpoints at port 8080; "!" after the address stands for source NAT.
func deliver(ips ...string) string {
	texts := make([]string, len(ips))
	for i, ip := range ips {
		ip, nat := strings.CutSuffix(ip, "!")
		texts[i] = Destination{Endpoint: netip.AddrPortFrom(addr(ip), 8080), SourceNAT: nat}.String()
	}
	return "deliver to " + strings.Join(texts, " or ")
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }
