package iptables_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// discarding is an iptables that does nothing, and notes how much it gets.
type discarding struct {
	*dataplane.Fake
	bytes int64
}

func (d *discarding) Restore(_ context.Context, b *dataplane.Batch) error {
	n, err := b.WriteTo(io.Discard)
	d.bytes += n
	return err
}

// BenchmarkBigService is what the backend itself takes for a wave, without iptables-restore and the kernel, in which an
// endpoint of one service is replaced. input-bytes is what iptables-restore would get.
func BenchmarkBigService(b *testing.B) {
	endpoint := func(port string, i int) *model.Endpoint {
		return fm.Endpoint("big/one:"+port+"/TCP", fmt.Sprintf("10.%d.%d.%d:8080", 128+i>>16, i>>8&255, i&255)).Build()
	}
	service := func(addresses, ports int) *model.Service {
		s := fm.Service("big/one").DetectsLocalPods().ClusterIP("10.96.0.1")
		for i := range addresses {
			s.ExternalIP(fmt.Sprintf("198.18.%d.%d", i>>8, i&255))
		}
		for i := range ports {
			s.Port(fmt.Sprintf("p%d", i), uint16(1+i))
		}
		return s.Build()
	}
	most := frontend.Budget{Frontends: math.MaxInt, SourceRanges: math.MaxInt, Destinations: math.MaxInt}
	for _, size := range []struct{ endpoints, addresses, ports int }{
		{10, 1, 1}, {50000, 1, 1}, {10, 10000, 1}, {2, 1, 8000}, {1000, 1000, 10},
	} {
		b.Run(fmt.Sprintf("%d-endpoints-%d-addresses-%d-ports", size.endpoints, size.addresses, size.ports),
			func(b *testing.B) {
				d := &discarding{Fake: dataplane.NewFake(model.IPv4)}
				backend, err := iptables.New(b.Context(),
					iptables.Options{Dataplanes: []dataplane.Interface{d},
						Common: frontend.Common{Limits: frontend.Limits{Service: most, Namespace: most}}}.CheckingEvery(-1))
				require.NoError(b, err)
				defer backend.Close()
				backend.SetNode(backendtest.Node())
				backend.SetService(service(size.addresses, size.ports))
				for p := range size.ports {
					for i := range size.endpoints {
						backend.SetEndpoint(endpoint(fmt.Sprintf("p%d", p), i))
					}
				}
				require.NoError(b, backend.Sync(b.Context()))
				gone, come := endpoint("p0", 1), endpoint("p0", size.endpoints)
				b.ReportAllocs()
				d.bytes = 0
				n := 0
				for b.Loop() {
					backend.DeleteEndpoint(gone.Key())
					backend.SetEndpoint(come)
					require.NoError(b, backend.Sync(b.Context()))
					gone, come = come, gone
					n++
				}
				b.ReportMetric(float64(d.bytes)/float64(n), "input-bytes/op")
			})
	}
}
