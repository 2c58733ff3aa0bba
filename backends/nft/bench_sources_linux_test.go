package nft_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// BenchmarkSourceRanges loads one service whose ranges would be multiplied by its ports and addresses.
func BenchmarkSourceRanges(b *testing.B) {
	for _, n := range []struct{ ports, vips, ranges int }{
		{10, 10, 0}, {10, 10, 100}, {100, 1, 100}, {100, 1, 300}, {100, 1, 1000}} {
		b.Run(fmt.Sprintf("%dx%dx%d", n.ports, n.vips, n.ranges), func(b *testing.B) {
			values := restricted(model.IPv4, "x", n.ports, n.vips, sourceRanges(model.IPv4, n.ranges)...)
			for range b.N {
				b.StopTimer()
				testkit.EnterNamespace(b)
				backend := newBackend(b, nft.Options{})
				backendtest.Set(b, backend, backendtest.Node())
				require.NoError(b, backend.Sync(b.Context()))
				backendtest.Set(b, backend, values...)
				b.StartTimer()
				require.NoError(b, backend.Sync(b.Context()))
				b.StopTimer()
				require.NoError(b, backend.Close())
			}
		})
	}
}

// BenchmarkSourceLists loads and deletes 10,000 services, each with a list of 10 ranges that no other has.
func BenchmarkSourceLists(b *testing.B) {
	const services, n = 10_000, 10
	for _, lists := range []int{0, services} {
		b.Run(fmt.Sprintf("%d", lists), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				testkit.EnterNamespace(b)
				backend := newBackend(b, nft.Options{})
				backendtest.Set(b, backend, backendtest.Node())
				require.NoError(b, backend.Sync(b.Context()))
				for i := range services {
					s := fm.Service(fmt.Sprintf("default/s%d", i)).LoadBalancerIP(fmt.Sprintf("203.0.%d.%d", i/200, i%200)).
						ClusterIP(fmt.Sprintf("10.96.%d.%d", i/200, i%200)).Port("http", 80)
					for k := range min(lists, n) {
						s.SourceRange(fmt.Sprintf("100.%d.%d.%d/32", i/200, i%200, 2*k))
					}
					backendtest.Set(b, backend, s.Build(),
						fm.Endpoint(fmt.Sprintf("default/s%d:http/TCP", i), "10.244.2.9:80").Build())
				}
				b.StartTimer()
				require.NoError(b, backend.Sync(b.Context()))
				b.StopTimer()
				for i := range services {
					backend.DeleteService(model.ServiceName{Namespace: "default", Name: fmt.Sprintf("s%d", i)})
				}
				began := time.Now()
				require.NoError(b, backend.Sync(b.Context()))
				b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/delete")
				require.NoError(b, backend.Close())
			}
		})
	}
}
