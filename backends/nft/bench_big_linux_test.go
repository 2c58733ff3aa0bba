package nft_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// hugeService is a service of a kind that a tenant may make, on a node that has others to serve.
type hugeService struct{ addresses, ports, endpoints int }

func (h hugeService) String() string {
	return fmt.Sprintf("%d-addresses-%d-ports-%d-endpoints", h.addresses, h.ports, h.endpoints)
}

func (h hugeService) service() *model.Service {
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: true, DetectsLocalPods: true})
	s := &model.Service{Name: model.ServiceName{Namespace: "bench", Name: "huge"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.111.0.1")}}
	for i := range h.addresses - 1 {
		s.ExternalIPs = append(s.ExternalIPs, netip.AddrFrom4([4]byte{198, byte(18 + i>>16), byte(i >> 8), byte(i)}))
	}
	for i := range h.ports {
		s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(1 + i),
			Routes: model.PerFamily[model.Routes]{IPv4: routes}})
	}
	return s
}

func (h hugeService) endpoint(port, i int) *model.Endpoint {
	name := model.PortName{Service: model.ServiceName{Namespace: "bench", Name: "huge"}, Port: fmt.Sprint("p", port),
		Protocol: model.TCP}
	pod := netip.AddrFrom4([4]byte{11, byte(i >> 16), byte(i >> 8), byte(i)})
	return &model.Endpoint{Port: name, Target: netip.AddrPortFrom(pod, uint16(1+port)), Sets: model.ClusterSet,
		Ready: true, Serving: true}
}

var hugeServices = []hugeService{{16000, 1, 2}, {1, 8000, 2}, {1, 1, 50000}, {100, 10, 1000}}

// BenchmarkHugeService replaces one endpoint of a huge service, or takes one away and brings it back.
func BenchmarkHugeService(b *testing.B) {
	for _, h := range hugeServices {
		for _, resize := range []bool{false, true} {
			name := h.String() + "/endpoint-replaced"
			if resize {
				name = h.String() + "/resized"
			}
			b.Run(name, func(b *testing.B) {
				testkit.EnterNamespace(b)
				backend := newBackend(b, nft.Options{})
				defer func() { require.NoError(b, backend.Close()) }()
				backendtest.Sizes(10, 1000)[0].Set(backend)
				backend.SetService(h.service())
				for port := range h.ports {
					for i := range h.endpoints {
						backend.SetEndpoint(h.endpoint(port, i))
					}
				}
				require.NoError(b, backend.Sync(b.Context()))
				watch, n := backendtest.NewStopwatch(b), 0
				here, away := h.endpoint(h.ports/2, 1), h.endpoint(h.ports/2, h.endpoints+1)
				for b.Loop() {
					watch.Time(func() {
						switch {
						case n%2 == 1:
							backend.SetEndpoint(here)
							backend.DeleteEndpoint(away.Key())
						case resize:
							backend.DeleteEndpoint(here.Key())
						default:
							backend.DeleteEndpoint(here.Key())
							backend.SetEndpoint(away)
						}
						require.NoError(b, backend.Sync(b.Context()))
					})
					n++
				}
			})
		}
	}
}

// BenchmarkRestartAffinity is BenchmarkRestart where all services have session affinity.
func BenchmarkRestartAffinity(b *testing.B) {
	eachSizeWithAffinity(b, backendtest.Bench.Restart, 1000, 4000)
}
