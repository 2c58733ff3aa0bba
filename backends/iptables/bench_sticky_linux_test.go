package iptables_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// BenchmarkBesideStickyEndpoints changes an endpoint of another service beside a service with session affinity and so
// many endpoints, without limits and within the default ones, and beside one without affinity; load is the first Sync.
func BenchmarkBesideStickyEndpoints(b *testing.B) {
	for _, v := range []dataplane.Variant{dataplane.Legacy, dataplane.NFT} {
		for _, n := range []int{0, 1000, 2000, 4000, 8000} {
			for _, how := range []string{"plain", "sticky", "limited"} {
				b.Run(fmt.Sprintf("%s/%d/%s", v, n, how), func(b *testing.B) {
					needPrograms(b, v)
					testkit.EnterNamespace(b)
					o := iptables.Options{}.Of(v)
					if how == "sticky" {
						o.Limits.Service.StickyEndpoints, o.Limits.Namespace.StickyEndpoints = n+1, n+1
					}
					backend := newBackend(b, o)
					defer func() { require.NoError(b, backend.Close()) }()
					backend.SetNode(backendtest.Node())
					s := fm.Service("evil/sticky").ClusterIP("10.96.0.1").Port("http", 80)
					if how != "plain" {
						s.Affinity(time.Hour)
					}
					backend.SetService(s.Build())
					for i := range n {
						addr := netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)})
						backend.SetEndpoint(fm.Endpoint("evil/sticky:http/TCP", netip.AddrPortFrom(addr, 80).String()).Build())
					}
					backend.SetService(fm.Service("prod/web").ClusterIP("10.96.0.2").Port("http", 80).Build())
					endpoints := []*model.Endpoint{fm.Endpoint("prod/web:http/TCP", "10.249.0.1:80").Build(),
						fm.Endpoint("prod/web:http/TCP", "10.249.0.2:80").Build()}
					backend.SetEndpoint(endpoints[0])
					load := backendtest.NewStopwatch(b)
					load.Time(func() { require.NoError(b, backend.Sync(b.Context())) })
					watch := backendtest.NewStopwatch(b)
					for i := 0; b.Loop(); i++ {
						backend.DeleteEndpoint(endpoints[i%2].Key())
						backend.SetEndpoint(endpoints[(i+1)%2])
						watch.Time(func() { require.NoError(b, backend.Sync(b.Context())) })
					}
					b.ReportMetric(float64(load.Total.Milliseconds()), "load-ms")
				})
			}
		}
	}
}
