package fakemodel

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

func TestServiceBuilder(t *testing.T) {
	got := Service("ns/web").UID("uid-1").Created(time.Unix(1000, 5)).Label("app", "web").Annotation("note", "x").
		ClusterIP("10.96.0.10", "fd96::10").ExternalIP("198.51.100.10").LoadBalancerIP("198.51.100.20").
		SourceRange("192.0.2.0/24").
		Port("http", 80).NodePort(30080).UDPPort("dns", 53).SCTPPort("sig", 54).
		InternalLocal().ExternalLocal().Affinity(time.Hour).HealthCheck(31000, 2, 1).
		DetectsLocalPods().MasqueradeAll().NoEndpoints().Build()

	policy := model.RoutePolicy{Internal: model.TrafficPolicyLocal, External: model.TrafficPolicyLocal, ClusterIP: true,
		DetectsLocalPods: true, MasqueradeAll: true, NoEndpoints: true}
	internal := model.NewRoutes(policy)
	policy.ExternalAddresses = true
	both := model.NewRoutes(policy)
	assert.Equal(t, &model.Service{
		Name:                     model.ServiceName{Namespace: "ns", Name: "web"},
		UID:                      "uid-1",
		Created:                  time.Unix(1000, 0).UTC(),
		Labels:                   map[string]string{"app": "web"},
		Annotations:              map[string]string{"note": "x"},
		ClusterIPs:               addrs([]string{"10.96.0.10", "fd96::10"}),
		ExternalIPs:              addrs([]string{"198.51.100.10"}),
		LoadBalancerIPs:          addrs([]string{"198.51.100.20"}),
		LoadBalancerSourceRanges: prefixes([]string{"192.0.2.0/24"}),
		InternalTrafficPolicy:    model.TrafficPolicyLocal,
		ExternalTrafficPolicy:    model.TrafficPolicyLocal,
		SessionAffinityTimeout:   time.Hour,
		HealthCheck:              &model.HealthCheck{NodePort: 31000, LocalEndpoints: model.PerFamily[int]{IPv4: 2, IPv6: 1}},
		Ports: []model.ServicePort{
			{Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080,
				Routes: model.PerFamily[model.Routes]{IPv4: both, IPv6: both}},
			{Name: "dns", Protocol: model.UDP, Port: 53, Routes: model.PerFamily[model.Routes]{IPv4: both, IPv6: internal}},
			{Name: "sig", Protocol: model.SCTP, Port: 54, Routes: model.PerFamily[model.Routes]{IPv4: both, IPv6: internal}},
		},
	}, got)
}

func TestBuildersHaveDefaults(t *testing.T) {
	svc := Service("web").NodePort(30080).Build()
	assert.Equal(t, model.ServiceName{Namespace: "default", Name: "web"}, svc.Name)
	assert.Equal(t, addrs([]string{kube.DefaultClusterIP("default", "web")}), svc.ClusterIPs)
	assert.Equal(t, []model.ServicePort{{Protocol: model.TCP, Port: 80, NodePort: 30080,
		Routes: model.PerFamily[model.Routes]{
			IPv4: model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: true})}}}, svc.Ports)
	assert.Len(t, Service("web").Build().Ports, 1)

	assert.Equal(t, &model.Endpoint{
		Port:   model.PortName{Service: svc.Name, Protocol: model.TCP},
		Target: netip.MustParseAddrPort("10.244.2.5:8080"), Sets: model.ClusterSet, Ready: true, Serving: true,
	}, Endpoint("web/TCP", "10.244.2.5:8080").Build())
}

func TestEndpointBuilder(t *testing.T) {
	port := model.PortName{Service: model.ServiceName{Namespace: "ns", Name: "web"}, Port: "dns", Protocol: model.UDP}
	target := netip.MustParseAddrPort("[fd44::5]:53")
	assert.Equal(t, port, Endpoint(port.String(), target.String()).Build().Port)
	assert.Equal(t, &model.Endpoint{Port: port, Target: target, Node: "n1", Local: true,
		Sets: model.ClusterSet | model.LocalSet, Serving: true, Terminating: true},
		Endpoint("ns/web:dns/UDP", "[fd44::5]:53").Local().OnNode("n1").Terminating().Build())
	assert.Equal(t, &model.Endpoint{Port: port, Target: target, Local: true, Sets: model.LocalSet, Ready: true,
		Serving: true},
		Endpoint("ns/web:dns/UDP", "[fd44::5]:53").Local().Sets(model.LocalSet).Build())
}

func TestNodeBuilder(t *testing.T) {
	detector := model.LocalPods{Bridge: "cni0"}
	assert.Equal(t, &model.Node{
		Name: "n1", Zone: "a", IPs: addrs([]string{"172.18.0.2", "fd18::2"}),
		PodCIDRs:     prefixes([]string{"10.244.1.0/24"}),
		ServiceCIDRs: prefixes([]string{"10.96.0.0/16"}),
		LocalPods:    detector,
	}, Node("n1").Zone("a").IP("172.18.0.2", "fd18::2").PodCIDR("10.244.1.0/24").ServiceCIDR("10.96.0.0/16").
		LocalPods(detector).Build())
}

func TestBuildersOfOneValueDoNotShareIt(t *testing.T) {
	b := Service("web").Label("a", "b").Port("http", 80)
	before := b.Build()
	after := b.Label("a", "c").NodePort(30080).Build()
	assert.Equal(t, "b", before.Labels["a"])
	assert.Zero(t, before.Ports[0].NodePort)
	assert.Equal(t, "c", after.Labels["a"])
}

func TestBuildersPanicWithEveryProblem(t *testing.T) {
	tests := []struct {
		name  string
		build func()
		want  string
	}{
		{"an address that is none", func() { Service("web").ClusterIP("10.96.0.300") }, "10.96.0.300"},
		{"a range that is none", func() { Service("web").SourceRange("192.0.2.0/33") }, "192.0.2.0/33"},
		{"two cluster IPs of a family", func() { Service("web").ClusterIP("10.96.0.10", "10.96.0.11").Build() },
			"service default/web: clusterIPs"},
		{"a target that is none", func() { Endpoint("web/TCP", "10.244.1.5") }, "10.244.1.5"},
		{"a port name without protocol", func() { Endpoint("web", "10.244.1.5:80") },
			`port name "web" has no protocol`},
		{"an unknown protocol", func() { Endpoint("web/ICMP", "10.244.1.5:80") }, "ICMP"},
		{"an endpoint in the Local set of another node",
			func() { Endpoint("web/TCP", "10.244.1.5:80").Sets(model.LocalSet).Build() }, "not local"},
		{"a node without a name", func() { Node("").Build() }, "name: is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			defer func() {
				message, ok := recover().(string)
				require.True(t, ok, "it does not panic with a text")
				assert.Contains(t, message, "fakemodel: ")
				assert.Contains(t, message, tt.want)
			}()
			tt.build()
		})
	}
}
