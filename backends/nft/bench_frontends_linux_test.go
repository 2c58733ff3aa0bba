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
)

// manyFrontends is services with VIPs, and source ranges that no other service has.
type manyFrontends struct{ services, ports, vips, ranges, endpoints int }

func (m manyFrontends) set(backend *nft.Backend) {
	routes := model.NewRoutes(model.RoutePolicy{ClusterIP: true, ExternalAddresses: true, DetectsLocalPods: true})
	addr := func(first byte, n int) netip.Addr {
		return netip.AddrFrom4([4]byte{first + byte(n>>24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	for i := range m.services {
		s := &model.Service{Name: m.name(i), ClusterIPs: []netip.Addr{addr(10, 97<<16+i)}}
		for n := range m.vips {
			s.LoadBalancerIPs = append(s.LoadBalancerIPs, addr(100, i*m.vips+n))
		}
		for n := range m.ranges {
			s.LoadBalancerSourceRanges = append(s.LoadBalancerSourceRanges, netip.PrefixFrom(addr(120, 2*(i*m.ranges+n)), 32))
		}
		for n := range m.ports {
			s.Ports = append(s.Ports, model.ServicePort{Name: fmt.Sprint("p", n), Protocol: model.TCP, Port: uint16(1 + n),
				Routes: model.PerFamily[model.Routes]{IPv4: routes}})
		}
		backend.SetService(s)
		for _, port := range s.Ports {
			for n := range m.endpoints {
				backend.SetEndpoint(&model.Endpoint{Port: s.PortName(port), Sets: model.ClusterSet, Ready: true,
					Target: netip.AddrPortFrom(addr(10, 128<<16+n), port.Port)})
			}
		}
	}
}

func (m manyFrontends) name(i int) model.ServiceName {
	return model.ServiceName{Namespace: "many", Name: fmt.Sprint("s", i)}
}

// BenchmarkBesideFrontends is about the limits of a service and of a namespace: the processor time to load and remove
// what they allow, and then a change of another service without affinity. One whose endpoint is replaced changes an
// element; one with an endpoint more or less changes a verdict, for which the kernel validates the table.
func BenchmarkBesideFrontends(b *testing.B) {
	for _, m := range []manyFrontends{
		{},
		{services: 7900, ports: 1, vips: 1, ranges: 32, endpoints: 1},
		{services: 7900, ports: 1, vips: 1, ranges: 33, endpoints: 1},
		{services: 32768, ports: 1, vips: 1, ranges: 1, endpoints: 1},
		{services: 1, ports: 1000, vips: 128, endpoints: 1},
		{services: 1, ports: 1000, vips: 128, ranges: 32, endpoints: 1},
		{services: 8, ports: 400, vips: 128, endpoints: 9},
	} {
		b.Run(fmt.Sprintf("%dx%dports-%dvips-%dranges-%dendpoints", m.services, m.ports, m.vips, m.ranges, m.endpoints),
			func(b *testing.B) { besideFrontends(b, m) })
	}
}

func besideFrontends(b *testing.B, m manyFrontends) {
	testkit.EnterNamespace(b)
	var took [4]time.Duration
	const rounds = 10
	for b.Loop() {
		backend := newBackend(b, nft.Options{})
		eps := neighbour(backend, 0)
		sync := func() { require.NoError(b, backend.Sync(b.Context())) }
		sync()
		step := func(i int, f func()) {
			runtime.GC()
			watch := backendtest.NewStopwatch(b)
			watch.Time(f)
			took[i] += watch.Total
		}
		m.set(backend)
		step(0, sync)
		step(2, func() {
			for i := range rounds {
				backend.DeleteEndpoint(eps[i%2].Key())
				backend.SetEndpoint(eps[(i+1)%2])
				sync()
			}
		})
		step(3, func() {
			for i := range rounds {
				if i%2 == 0 {
					backend.SetEndpoint(eps[1])
				} else {
					backend.DeleteEndpoint(eps[1].Key())
				}
				sync()
			}
		})
		for i := range m.services {
			backend.DeleteService(m.name(i))
		}
		step(1, sync)
		require.NoError(b, backend.CleanUp(b.Context()))
		require.NoError(b, backend.Close())
		settle()
	}
	for i, unit := range []string{"ms-load", "ms-remove", "ms-replaced", "ms-more-or-less"} {
		ms := took[i].Seconds() * 1000 / float64(b.N)
		if i > 1 {
			ms /= rounds
		}
		b.ReportMetric(ms, unit)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(0, "cpu-ns/op")
}
