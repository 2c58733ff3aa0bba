package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The benchmarks are what the backend itself takes, with the fakes in the place of the kernel:
//
//	go test -run - -bench . -benchtime 3x ./backends/ipvs
//
// requests/op are the requests that IPVS would get. The names are those of the other backends' benchmarks. What a
// service that comes or goes takes more in bigger clusters is the fake of nftables: it checks its whole table each
// time.

func eachSize(b *testing.B, f func(backendtest.Bench, *testing.B)) {
	for _, size := range backendtest.Sizes(10, 10, 1000, 10_000) {
		b.Run(size.String(), func(b *testing.B) {
			b.ReportAllocs()
			k := newKernel(b)
			f(backendtest.Bench{Size: size, New: func() backendtest.Backend {
				return k.start(b, func(o *Options) { o.Families = []model.Family{model.IPv4} })
			}}, b)
		})
	}
}

func BenchmarkFullLoad(b *testing.B) { eachSize(b, backendtest.Bench.FullLoad) }

func BenchmarkRestart(b *testing.B) { eachSize(b, backendtest.Bench.Restart) }

func BenchmarkOneEndpointChanged(b *testing.B) { eachSize(b, backendtest.Bench.OneEndpointChanged) }

func BenchmarkAddOrDeleteService(b *testing.B) { eachSize(b, backendtest.Bench.AddOrDeleteService) }

// BenchmarkBigService is a wave in which an endpoint of one big service is replaced.
func BenchmarkBigService(b *testing.B) {
	for _, z := range append([]bigService{{10, 1, 1}}, bigSizes()...) {
		b.Run(z.String(), func(b *testing.B) {
			k, backend := z.start(b)
			gone, come := z.endpoint(0, 1), z.endpoint(0, z.endpoints)
			b.ReportAllocs()
			requests, n := 0, 0
			for b.Loop() {
				backend.DeleteEndpoint(gone.Key())
				backend.SetEndpoint(come)
				require.NoError(b, backend.Sync(b.Context()))
				requests += len(k.ipvs.TakeCalls().Writes)
				gone, come = come, gone
				n++
			}
			b.ReportMetric(float64(requests)/float64(n), "requests/op")
		})
	}
}
