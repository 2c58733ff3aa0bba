package model_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestCheckNamesInvariantsThatDoNotHold(t *testing.T) {
	cluster, local := model.TrafficPolicyCluster, model.TrafficPolicyLocal
	ready := func(e *model.Endpoint) { e.Ready, e.Serving = true, true }
	in := func(sets model.EndpointSets) func(*model.Endpoint) { return func(e *model.Endpoint) { e.Sets = sets } }
	onNode := func(e *model.Endpoint) { e.Local = true }
	type change = func(*model.Endpoint)
	for _, c := range []struct {
		name               string
		internal, external model.TrafficPolicy
		nothing            bool // the routes say that no endpoint is usable anywhere
		endpoint           []change
		service            func(*model.Service)
		want               string
	}{
		{"a ready endpoint", cluster, cluster, false, []change{ready, in(model.ClusterSet)}, nil, ""},
		{"no endpoint", cluster, cluster, true, nil, nil, ""},
		{"no endpoint, and Local", local, local, true, nil, nil, ""},
		{"an endpoint elsewhere, and Local", cluster, local, false, []change{ready, in(model.ClusterSet)}, nil, ""},
		{"an endpoint here, and Local", cluster, local, false,
			[]change{ready, onNode, in(model.ClusterSet | model.LocalSet)}, nil, ""},
		{"a draining endpoint of no set", cluster, cluster, true, []change{in(0)}, nil, ""},
		{"an endpoint of a headless service", cluster, cluster, false, []change{ready, in(model.ClusterSet)},
			func(s *model.Service) { s.Headless, s.Ports[0].Routes.IPv4 = true, model.Routes{} }, ""},

		{"an endpoint that does not serve", cluster, cluster, false, []change{in(model.ClusterSet)}, nil,
			"endpoint ns/a:http/TCP -> 10.0.0.1:80: sets: in the Cluster set, but not serving"},
		{"an endpoint elsewhere in the local set", cluster, local, false,
			[]change{ready, in(model.ClusterSet | model.LocalSet)}, nil,
			"endpoint ns/a:http/TCP -> 10.0.0.1:80: sets: in the Local set, but not local"},
		{"a set that no route uses", cluster, cluster, false,
			[]change{ready, onNode, in(model.ClusterSet | model.LocalSet)}, nil, ""},
		{"an endpoint of an unknown port", cluster, cluster, true,
			[]change{ready, func(e *model.Endpoint) { e.Port.Port = "dns" }}, nil,
			"endpoint ns/a:dns/TCP -> 10.0.0.1:80: port: service ns/a has no such port"},
		{"hints that leave only local endpoints", cluster, local, false,
			[]change{ready, onNode, in(model.LocalSet)}, nil,
			"service port ns/a:http/TCP: routes.IPv4: the Cluster set is empty, but the Local set is not\n" +
				"service port ns/a:http/TCP: routes.IPv4.external: drops although no endpoint is usable anywhere\n" +
				"service port ns/a:http/TCP: routes.IPv4.externalFromPod: drops although no endpoint is usable anywhere"},
		{"routes that reject although there is an endpoint", cluster, local, true,
			[]change{ready, in(model.ClusterSet)}, nil,
			"service port ns/a:http/TCP: routes.IPv4.external: rejects, but an endpoint is usable\n" +
				"service port ns/a:http/TCP: routes.IPv4.externalFromPod: rejects, but an endpoint is usable"},
		{"a cluster set that drops", cluster, cluster, true, nil,
			func(s *model.Service) { s.Ports[0].Routes.IPv4.ClusterIP.Empty = model.Drop },
			"service port ns/a:http/TCP: routes.IPv4.clusterIP: drops, but no endpoint is usable anywhere"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &model.Service{Name: model.ServiceName{Namespace: "ns", Name: "a"}, Ports: []model.ServicePort{{
				Name: "http", Protocol: model.TCP, Port: 80, NodePort: 30080,
				Routes: model.PerFamily[model.Routes]{
					IPv4: model.NewRoutes(model.RoutePolicy{Internal: c.internal, External: c.external,
						ClusterIP:         true,
						ExternalAddresses: true, NoEndpoints: c.nothing})},
			}}}
			if c.service != nil {
				c.service(s)
			}
			var endpoints []*model.Endpoint
			if c.endpoint != nil {
				e := &model.Endpoint{Port: s.PortName(s.Ports[0]), Target: netip.MustParseAddrPort("10.0.0.1:80")}
				for _, change := range c.endpoint {
					change(e)
				}
				endpoints = append(endpoints, e)
			}
			err := model.Check(s, slices.Values(endpoints))
			if c.want == "" {
				require.NoError(t, err)
				return
			}
			require.Error(t, err)
			assert.Equal(t, c.want, err.Error())
		})
	}
}

// BenchmarkCheck checks services with one endpoint for each of their ports.
func BenchmarkCheck(b *testing.B) {
	for _, ports := range []int{80, 8000} {
		b.Run(fmt.Sprintf("ports=%d", ports), func(b *testing.B) {
			s := &model.Service{Name: model.ServiceName{Namespace: "default", Name: "web"}}
			var endpoints []*model.Endpoint
			for i := range ports {
				p := model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(i + 1)}
				s.Ports = append(s.Ports, p)
				endpoints = append(endpoints, &model.Endpoint{Port: s.PortName(p),
					Target: netip.MustParseAddrPort("10.0.0.1:80")})
			}
			for b.Loop() {
				if err := model.Check(s, slices.Values(endpoints)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
