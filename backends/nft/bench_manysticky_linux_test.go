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

// stickyEndpoint returns the i-th endpoint of a service port.
func stickyEndpoint(port model.PortName, i int) *model.Endpoint {
	return &model.Endpoint{Port: port, Sets: model.ClusterSet, Ready: true,
		Target: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(130 + i>>16), byte(i >> 8), byte(i)}), 80)}
}

// BenchmarkManyStickyEndpoints is about service ports with session affinity and many endpoints, as many as one service
// and the services of a namespace may have: their load, a restart, the change of one of their endpoints, and then, of
// another service, that of an endpoint with affinity and that of the number of endpoints without. Processor time.
func BenchmarkManyStickyEndpoints(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{1, 1000}, {1, 8000}, {1, 32768}, {4, 32768}} {
		b.Run(fmt.Sprintf("%dx%d", size.services, size.endpoints), func(b *testing.B) {
			manyStickyEndpoints(b, size.services, size.endpoints)
		})
	}
}

func manyStickyEndpoints(b *testing.B, nServices, n int) {
	testkit.EnterNamespace(b)
	const rounds = 4
	port := func(i int) model.PortName {
		s := stickyService(i)
		return s.PortName(s.Ports[0])
	}
	load := func() *nft.Backend {
		backend := newBackend(b, nft.Options{})
		for i := range nServices {
			backend.SetService(stickyService(i))
			for k := range n {
				backend.SetEndpoint(stickyEndpoint(port(i), k))
			}
		}
		return backend
	}
	took := map[string]time.Duration{}
	step := func(unit string, times int, f func(i int)) {
		runtime.GC()
		watch := backendtest.NewStopwatch(b)
		watch.Time(func() {
			for i := range times {
				f(i)
			}
		})
		took[unit] += watch.Total / time.Duration(times)
	}
	for b.Loop() {
		backend := load()
		sync := func(int) { require.NoError(b, backend.Sync(b.Context())) }
		step("ms-load", 1, sync)
		require.NoError(b, backend.Close())
		backend = load()
		sticky := neighbour(backend, time.Hour)
		plain := stickyService(200)
		plain.SessionAffinityTimeout = 0
		backend.SetService(plain)
		backend.SetEndpoint(stickyEndpoint(port(200), 1))
		step("ms-restart", 1, sync)
		step("ms-replaced", rounds, func(i int) {
			backend.DeleteEndpoint(stickyEndpoint(port(0), 7*i).Key())
			backend.SetEndpoint(stickyEndpoint(port(0), n+i))
			sync(i)
		})
		step("ms-removed", rounds, func(i int) {
			backend.DeleteEndpoint(stickyEndpoint(port(0), n+i).Key())
			sync(i)
		})
		step("ms-sticky-bystander", rounds, func(i int) {
			backend.DeleteEndpoint(sticky[i%2].Key())
			backend.SetEndpoint(sticky[(i+1)%2])
			sync(i)
		})
		step("ms-resized-bystander", rounds, func(i int) {
			if another := stickyEndpoint(port(200), 2); i%2 == 0 {
				backend.SetEndpoint(another)
			} else {
				backend.DeleteEndpoint(another.Key())
			}
			sync(i)
		})
		require.NoError(b, backend.CleanUp(b.Context()))
		require.NoError(b, backend.Close())
	}
	for unit, d := range took {
		b.ReportMetric(d.Seconds()*1000/float64(b.N), unit)
	}
	b.ReportMetric(0, "ns/op")
}

// stickyService returns the i-th service with session affinity and one port.
func stickyService(i int) *model.Service {
	s, _ := manyPorts("many", 1, time.Hour)
	s.Name.Name, s.ClusterIPs = fmt.Sprint("s", i), []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 201, byte(i)})}
	return s
}
