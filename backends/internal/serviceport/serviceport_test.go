package serviceport_test

import (
	"cmp"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/serviceport"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

var node = serviceport.Node{Family: model.IPv4, LocalPods: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}

// entry is a service with endpoints, given in any order.
func entry(s *model.Service, endpoints ...*model.Endpoint) *sink.ServiceEntry {
	slices.SortFunc(endpoints, func(a, b *model.Endpoint) int {
		return cmp.Or(cmp.Compare(a.Port.Port, b.Port.Port), cmp.Compare(a.Port.Protocol, b.Port.Protocol), model.CompareTargets(a.Target, b.Target))
	})
	return &sink.ServiceEntry{Service: s, Endpoints: endpoints}
}

func each(n serviceport.Node, e *sink.ServiceEntry) (ports []serviceport.Port, skipped []string) {
	n.Each(e, func(p serviceport.Port) { ports = append(ports, p) }, func(problem string, p model.PortName) {
		skipped = append(skipped, p.String()+": "+problem)
	})
	return ports, skipped
}

// only returns the one port of a service that there is, of which nothing may have been skipped.
func only(t *testing.T, n serviceport.Node, e *sink.ServiceEntry) serviceport.Port {
	t.Helper()
	ports, skipped := each(n, e)
	require.Empty(t, skipped)
	require.Len(t, ports, 1)
	return ports[0]
}

func service() *fm.ServiceBuilder { return fm.Service("ns/web").Port("http", 80) }

func endpoint(target string) *fm.EndpointBuilder { return fm.Endpoint("ns/web:http/TCP", target) }

func TestDestinations(t *testing.T) {
	at := func(text string, k serviceport.Kind) serviceport.Destination {
		a := netip.MustParseAddrPort(text)
		return serviceport.Destination{Addr: a.Addr(), Port: a.Port(), Kind: k}
	}
	restricted := func(d serviceport.Destination) serviceport.Destination {
		d.Restricted = true
		return d
	}
	for name, tc := range map[string]struct {
		service   *model.Service
		family    model.Family
		want      []serviceport.Destination
		clusterIP string
	}{
		"a cluster IP": {
			service: service().ClusterIP("10.96.0.1").Build(), family: model.IPv4, clusterIP: "10.96.0.1",
			want: []serviceport.Destination{at("10.96.0.1:80", serviceport.ClusterIP)},
		},
		"of both families that of the one": {
			service: service().ClusterIP("10.96.0.1", "fd00:96::1").ExternalIP("198.51.100.1", "2001:db8::1").
				LoadBalancerIP("203.0.113.1", "2001:db8::2").Build(),
			family: model.IPv6, clusterIP: "fd00:96::1",
			want: []serviceport.Destination{at("[fd00:96::1]:80", serviceport.ClusterIP), at("[2001:db8::2]:80", serviceport.LoadBalancerIP),
				at("[2001:db8::1]:80", serviceport.ExternalIP)},
		},
		"a node port has no address, and a number of its own": {
			service: service().ClusterIP("10.96.0.1").NodePort(30080).Build(), family: model.IPv4, clusterIP: "10.96.0.1",
			want: []serviceport.Destination{at("10.96.0.1:80", serviceport.ClusterIP), {Port: 30080, Kind: serviceport.NodePort}},
		},
		"source ranges are for VIPs alone (S26)": {
			service: service().ClusterIP("10.96.0.1").ExternalIP("198.51.100.1").LoadBalancerIP("203.0.113.1").NodePort(30080).
				SourceRange("192.0.2.0/24").Build(),
			family: model.IPv4, clusterIP: "10.96.0.1",
			want: []serviceport.Destination{at("10.96.0.1:80", serviceport.ClusterIP), restricted(at("203.0.113.1:80", serviceport.LoadBalancerIP)),
				at("198.51.100.1:80", serviceport.ExternalIP), {Port: 30080, Kind: serviceport.NodePort}},
		},
		"source ranges of the other family restrict nobody (S8)": {
			service: service().ClusterIP("10.96.0.1").LoadBalancerIP("203.0.113.1").SourceRange("2001:db8::/32").Build(),
			family:  model.IPv4, clusterIP: "10.96.0.1",
			want: []serviceport.Destination{at("10.96.0.1:80", serviceport.ClusterIP), at("203.0.113.1:80", serviceport.LoadBalancerIP)},
		},
		"a VIP that is an external IP too is no way around the ranges": {
			service: service().ClusterIP("10.96.0.1").ExternalIP("203.0.113.1").LoadBalancerIP("203.0.113.1").
				SourceRange("192.0.2.0/24").Build(),
			family: model.IPv4, clusterIP: "10.96.0.1",
			want: []serviceport.Destination{at("10.96.0.1:80", serviceport.ClusterIP), restricted(at("203.0.113.1:80", serviceport.LoadBalancerIP))},
		},
		"a cluster IP that nothing is routed by is not there": {
			service: &model.Service{Name: model.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080,
					RoutesIPv4: model.NewRoutes(model.RoutePolicy{ExternalAddresses: true})}}},
			family: model.IPv4,
			want:   []serviceport.Destination{{Port: 30080, Kind: serviceport.NodePort}},
		},
		"external addresses that nothing is routed by are not there": {
			service: &model.Service{Name: model.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				ExternalIPs: []netip.Addr{netip.MustParseAddr("198.51.100.1")},
				Ports: []model.ServicePort{{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080,
					RoutesIPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true})}}},
			family: model.IPv4, clusterIP: "10.96.0.1",
			want: []serviceport.Destination{at("10.96.0.1:80", serviceport.ClusterIP)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := only(t, serviceport.Node{Family: tc.family}, entry(tc.service))
			assert.Equal(t, tc.want, p.Destinations)
			var clusterIP netip.Addr
			if tc.clusterIP != "" {
				clusterIP = netip.MustParseAddr(tc.clusterIP)
			}
			assert.Equal(t, clusterIP, p.ClusterIP())
			for _, d := range tc.want {
				if d.Restricted {
					assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}, p.SourceRanges)
				}
			}
		})
	}
}

func TestEndpointsAreThoseOfTheFamilyAndTheSetsInUse(t *testing.T) {
	endpoints := []*model.Endpoint{endpoint("10.244.2.5:8080").Build(), endpoint("10.244.1.5:8080").Local().Build(),
		endpoint("[fd00:244:1::5]:8080").Local().Build(), fm.Endpoint("ns/web:metrics/TCP", "10.244.2.5:9090").Build()}
	for name, tc := range map[string]struct {
		service        *fm.ServiceBuilder
		cluster, local []netip.AddrPort
	}{
		"the cluster set":                  {service().ClusterIP("10.96.0.1"), targets("10.244.1.5:8080", "10.244.2.5:8080"), nil},
		"the local set (S10)":              {service().ClusterIP("10.96.0.1").InternalLocal(), nil, targets("10.244.1.5:8080")},
		"both, with policies that need it": {service().ClusterIP("10.96.0.1").NodePort(30080).ExternalLocal(), targets("10.244.1.5:8080", "10.244.2.5:8080"), targets("10.244.1.5:8080")},
	} {
		t.Run(name, func(t *testing.T) {
			p := only(t, node, entry(tc.service.Build(), endpoints...))
			assert.Equal(t, tc.cluster, p.Endpoints(model.ClusterSet))
			assert.Equal(t, tc.local, p.Endpoints(model.LocalSet))
			assert.Empty(t, p.Endpoints(0))
		})
	}
}

func targets(texts ...string) (list []netip.AddrPort) {
	for _, text := range texts {
		list = append(list, netip.MustParseAddrPort(text))
	}
	return list
}

func TestHairpins(t *testing.T) { // S29
	detecting := func() *fm.ServiceBuilder { return service().ClusterIP("10.96.0.1").DetectsLocalPods() }
	for name, tc := range map[string]struct {
		service  *fm.ServiceBuilder
		endpoint *fm.EndpointBuilder
		want     bool
	}{
		"an endpoint of this node, whatever its address":                  {detecting().MasqueradeAll(), endpoint("192.0.2.77:80").Local(), true},
		"an endpoint elsewhere, where nobody is masqueraded":              {service().ClusterIP("10.96.0.1"), endpoint("10.244.2.5:80"), true},
		"an endpoint elsewhere, which is masqueraded for no local pod":    {detecting(), endpoint("10.244.2.5:80"), false},
		"an endpoint elsewhere, with an address of the node's pods":       {detecting(), endpoint("10.244.1.5:80"), true},
		"an endpoint elsewhere, where everybody is masqueraded":           {detecting().MasqueradeAll(), endpoint("10.244.1.5:80"), false},
		"the same, but where its traffic to a VIP keeps its source (S27)": {detecting().MasqueradeAll().LoadBalancerIP("203.0.113.1").ExternalLocal(), endpoint("10.244.1.5:80"), true},
		"an endpoint elsewhere, in no set that a route uses":              {service().ClusterIP("10.96.0.1").InternalLocal(), endpoint("10.244.2.5:80"), false},
	} {
		t.Run(name, func(t *testing.T) {
			p := only(t, node, entry(tc.service.Build(), tc.endpoint.Build()))
			assert.Equal(t, tc.want, len(p.Hairpins) == 1, "%v", p.Hairpins)
		})
	}
}

func TestAnAddressIsAHairpinOnce(t *testing.T) {
	p := only(t, node, entry(service().ClusterIP("10.96.0.1").Build(), endpoint("10.244.1.5:81").Local().Build(),
		endpoint("10.244.1.5:80").Local().Build(), endpoint("10.244.1.4:80").Local().Build()))
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("10.244.1.4"), netip.MustParseAddr("10.244.1.5")}, p.Hairpins)
}

func TestAffinityTimeoutIsASecondAtLeast(t *testing.T) { // S32
	for given, want := range map[time.Duration]time.Duration{0: 0, time.Millisecond: time.Second, time.Hour: time.Hour} {
		s := *service().ClusterIP("10.96.0.1").Build()
		s.SessionAffinityTimeout = given
		assert.Equal(t, want, only(t, node, entry(&s)).AffinityTimeout)
	}
}

func TestBadInputIsSkippedAndTheRestIsNot(t *testing.T) {
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true})
	port := func(name string, number uint16, p model.Protocol) model.ServicePort {
		return model.ServicePort{Name: name, Protocol: p, Port: number, RoutesIPv4: routes}
	}
	s := func(ports ...model.ServicePort) *model.Service {
		return &model.Service{Name: model.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: ports}
	}
	good := port("http", 80, model.TCP)
	for name, tc := range map[string]struct {
		entry   *sink.ServiceEntry
		ports   []uint16
		skipped []string
	}{
		"a service that has gone":            {nil, nil, nil},
		"endpoints without service":          {entry(nil, endpoint("10.244.1.5:80").Build()), nil, nil},
		"a port without number":              {entry(s(port("a", 0, model.TCP), good)), []uint16{80}, []string{"ns/web:a/TCP: it has no port number or protocol"}},
		"a port without protocol":            {entry(s(port("a", 81, 0), good)), []uint16{80}, []string{s().PortName(port("a", 81, 0)).String() + ": it has no port number or protocol"}},
		"a name that comes again":            {entry(s(good, port("http", 81, model.TCP))), []uint16{80}, []string{"ns/web:http/TCP: the service has two ports of that name"}},
		"a name that comes a third time":     {entry(s(good, good, good)), []uint16{80}, []string{"ns/web:http/TCP: the service has two ports of that name", "ns/web:http/TCP: the service has two ports of that name"}},
		"a name that only bad ones had":      {entry(s(port("http", 0, model.TCP), good)), []uint16{80}, []string{"ns/web:http/TCP: it has no port number or protocol"}},
		"the name with another protocol":     {entry(s(good, port("http", 80, model.UDP))), []uint16{80, 80}, nil},
		"a port that nothing leads to":       {entry(s(model.ServicePort{Name: "a"}, good)), []uint16{80}, nil},
		"a name that had nothing lead to it": {entry(s(model.ServicePort{Name: "http", Protocol: model.TCP, Port: 79}, good)), []uint16{80}, nil},
		"an endpoint without port number": {entry(s(good), &model.Endpoint{Port: s().PortName(good), Sets: model.ClusterSet, Target: netip.MustParseAddrPort("10.244.1.5:0")}),
			[]uint16{80}, []string{"ns/web:http/TCP: its endpoint 10.244.1.5 has no port number"}},
	} {
		t.Run(name, func(t *testing.T) {
			found, skipped := each(node, tc.entry)
			var ports []uint16
			for _, p := range found {
				ports = append(ports, p.Destinations[0].Port)
				assert.Empty(t, p.Cluster)
			}
			assert.Equal(t, tc.ports, ports)
			assert.Equal(t, tc.skipped, skipped)
		})
	}
}

func TestRoutesDependOnTheSourceExceptToAClusterIP(t *testing.T) { // S27, S28
	p := only(t, node, entry(service().ClusterIP("10.96.0.1").NodePort(30080).ExternalLocal().DetectsLocalPods().Build()))
	for kind, want := range map[serviceport.Kind][3]model.Route{
		serviceport.ClusterIP:      {p.Routes.ClusterIP, p.Routes.ClusterIP, p.Routes.ClusterIP},
		serviceport.LoadBalancerIP: {p.Routes.ExternalFromPod, p.Routes.ExternalFromNode, p.Routes.External},
		serviceport.ExternalIP:     {p.Routes.ExternalFromPod, p.Routes.ExternalFromNode, p.Routes.External},
		serviceport.NodePort:       {p.Routes.ExternalFromPod, p.Routes.ExternalFromNode, p.Routes.External},
	} {
		fromPod, fromNode, other := p.RoutesTo(kind)
		assert.Equal(t, want, [3]model.Route{fromPod, fromNode, other}, "%d", kind)
	}
	fromPod, fromNode, other := p.RoutesTo(serviceport.NodePort)
	assert.NotEqual(t, fromPod, fromNode)
	assert.NotEqual(t, fromPod, other)
}
