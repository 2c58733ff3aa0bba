package nft_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// manyPorts returns a Service with many ports, and an endpoint for each.
func manyPorts(namespace string, ports int, timeout time.Duration) (*model.Service, []*model.Endpoint) {
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, DetectsLocalPods: true})
	s := &model.Service{Name: model.ServiceName{Namespace: namespace, Name: "many"}, SessionAffinityTimeout: timeout,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.200.1")}}
	endpoints := make([]*model.Endpoint, ports)
	for i := range endpoints {
		port := model.ServicePort{Name: fmt.Sprint("p", i), Protocol: model.TCP, Port: uint16(1 + i),
			Routes: model.PerFamily[model.Routes]{IPv4: routes}}
		s.Ports = append(s.Ports, port)
		endpoints[i] = &model.Endpoint{Port: s.PortName(port), Sets: model.ClusterSet, Ready: true,
			Target: netip.AddrPortFrom(netip.MustParseAddr("10.128.0.7"), uint16(1+i))}
	}
	return s, endpoints
}

// neighbour returns the endpoints of a Service that has nothing to do with the others.
func neighbour(backend sink.Sink, timeout time.Duration) [2]*model.Endpoint {
	s, endpoints := manyPorts("bystander", 1, timeout)
	s.ClusterIPs = []netip.Addr{netip.MustParseAddr("10.96.200.2")}
	other := *endpoints[0]
	other.Target = netip.AddrPortFrom(other.Target.Addr().Next(), 1)
	backend.SetService(s)
	backend.SetEndpoint(endpoints[0])
	return [2]*model.Endpoint{endpoints[0], &other}
}

// BenchmarkStickyPorts is about one Service whose ports have session affinity: what they cost without it, what it costs
// to switch it on and off, and then an endpoint of another Service, with and without affinity. Processor time.
func BenchmarkStickyPorts(b *testing.B) {
	for _, ports := range []int{1000, 4000, 8000} {
		b.Run(fmt.Sprint(ports), func(b *testing.B) {
			testkit.EnterNamespace(b)
			var took [5]time.Duration
			for b.Loop() {
				backend := newBackend(b, nft.Options{})
				plain := neighbour(backend, 0)
				require.NoError(b, backend.Sync(b.Context()))
				step := func(i int, change func()) {
					runtime.GC()
					watch := backendtest.NewStopwatch(b)
					watch.Time(func() {
						change()
						require.NoError(b, backend.Sync(b.Context()))
					})
					took[i] += watch.Total
				}
				swap := func(eps [2]*model.Endpoint) func() {
					return func() {
						for i := range 20 {
							backend.DeleteEndpoint(eps[i%2].Key())
							backend.SetEndpoint(eps[(i+1)%2])
							require.NoError(b, backend.Sync(b.Context()))
						}
					}
				}
				s, endpoints := manyPorts("many", ports, 0)
				sticky := *s
				sticky.SessionAffinityTimeout = time.Hour
				step(0, func() {
					backend.SetService(s)
					for _, ep := range endpoints {
						backend.SetEndpoint(ep)
					}
				})
				step(1, func() { backend.SetService(&sticky) })
				step(3, swap(plain))
				keeps := neighbour(backend, time.Hour)
				require.NoError(b, backend.Sync(b.Context()))
				step(4, swap(keeps))
				step(2, func() { backend.SetService(s) })
				require.NoError(b, backend.CleanUp(b.Context()))
				require.NoError(b, backend.Close())
				settle()
			}
			for i, unit := range []string{"ms-load", "ms-on", "ms-off", "ms-plain-endpoint", "ms-sticky-endpoint"} {
				ms := took[i].Seconds() * 1000 / float64(b.N)
				if i > 2 {
					ms /= 20
				}
				b.ReportMetric(ms, unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStickyServices is a full load of services with session affinity and one endpoint each, in one namespace or
// in many.
func BenchmarkStickyServices(b *testing.B) {
	size := backendtest.ClusterSize{Services: 10000, Endpoints: 1, Affinity: time.Hour}
	for _, namespaces := range []int{1, 100, 1000, 10000} {
		b.Run(fmt.Sprintf("%d-namespaces", namespaces), func(b *testing.B) {
			testkit.EnterNamespace(b)
			watch := backendtest.NewStopwatch(b)
			for b.Loop() {
				backend := newBackend(b, nft.Options{})
				backend.SetNode(size.Node())
				for i := range size.Services {
					s, ep := *size.Service(i), *size.Endpoint(i, 0)
					s.Name.Namespace = fmt.Sprint("ns-", i%namespaces)
					ep.Port.Service = s.Name
					backend.SetService(&s)
					backend.SetEndpoint(&ep)
				}
				runtime.GC()
				watch.Time(func() { require.NoError(b, backend.Sync(b.Context())) })
				require.NoError(b, backend.CleanUp(b.Context()))
				require.NoError(b, backend.Close())
				settle()
			}
		})
	}
}
