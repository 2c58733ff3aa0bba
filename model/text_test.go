package model_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestStringOfAService(t *testing.T) {
	s := richService()
	s.Ports, s.Headless, s.ExternalName = s.Ports[:1], false, ""
	s.Ports[0].Routes.IPv6 = model.Routes{ClusterIP: model.Route{Endpoints: model.ClusterSet}}
	assert.Equal(t, `service shop/web cluster-ips=10.0.0.1,fd00::1 external-ips=203.0.113.7,2001:db8::7`+
		` load-balancer-ips=198.51.100.1,2001:db8::1 source-ranges=192.0.2.0/24,198.51.100.1/32,2001:db8:1::/48`+
		` internal=Local external=Local affinity=3h0m0s health-check=32000 (local endpoints: IPv4 2, IPv6 1)
  http 80/TCP node-port=30080
    IPv4 cluster IP: Local, masquerade UnlessLocalPod, if empty Drop
    IPv4 external: Local, masquerade Never, if empty Drop
    IPv4 external from local pod: Cluster, masquerade Never, if empty Reject
    IPv4 external from node: Cluster, masquerade Always, if empty Reject
    IPv6 cluster IP: Cluster, masquerade Never, if empty Reject`, s.String())

	small := &model.Service{Name: s.Name, Ports: []model.ServicePort{{Protocol: model.UDP, Port: 53}}}
	assert.Equal(t, "service shop/web\n  53/UDP", small.String())
	assert.Equal(t, "service shop/web headless", (&model.Service{Name: s.Name, Headless: true}).String())
	assert.Equal(t, "service shop/web external-name=www.example.com",
		(&model.Service{Name: s.Name, ExternalName: "www.example.com"}).String())
}

func TestStringOfAnEndpoint(t *testing.T) {
	e := richEndpoint()
	assert.Equal(t, "endpoint shop/web:http/TCP -> [fd00:10::2]:8080 sets=Cluster,Local node=node-1 local terminating"+
		" target=Pod:shop/web-0 hostname=web-0 zone=zone-a node-hints=node-1,node-2 zone-hints=zone-a,zone-b",
		e.String())
	e.Details = model.Details{}
	assert.Equal(t, "endpoint shop/web:http/TCP -> [fd00:10::2]:8080 sets=Cluster,Local node=node-1 local terminating",
		e.String())
	e = &model.Endpoint{Port: model.PortName{Service: e.Port.Service, Protocol: model.UDP},
		Target: addrPort("10.0.0.1:53")}
	assert.Equal(t, "endpoint shop/web/UDP -> 10.0.0.1:53 sets=- not-ready not-serving", e.String())
}

func TestStringOfANode(t *testing.T) {
	assert.Equal(t, "node node-1 zone=zone-a ips=192.0.2.10,2001:db8::10,192.0.2.11 pods=10.244.1.0/24,fd00:10:1::/64"+
		" services=10.0.0.0/16,fd00::/112 local-pods=10.244.1.0/24,fd00:10:1::/64 bridge=cbr0 interfaces=veth "+
		"not-eligible",
		richNode().String())
	assert.Equal(t, "node node-1", (&model.Node{Name: "node-1"}).String())
}

func TestStringOfRoutes(t *testing.T) {
	assert.Equal(t, "none", model.Routes{}.String())
	assert.Equal(t, "none", model.Route{}.String())
	assert.Equal(t, "cluster IP: Cluster, masquerade Never, if empty Reject; external: Local, masquerade Never, if "+
		"empty Drop",
		model.Routes{
			ClusterIP: model.Route{Endpoints: model.ClusterSet},
			External:  model.Route{Endpoints: model.LocalSet, Empty: model.Drop},
		}.String())
}
