package nft_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
)

// BenchmarkCountTraffic reads the counters of all services. BenchmarkCounters compares the first Sync, and Syncs of one
// change, with and without counters.
func BenchmarkCountTraffic(b *testing.B) {
	eachSize(b, func(m backendtest.Bench, b *testing.B) {
		backend := newBackend(b, nft.Options{CountConnections: true})
		defer backend.Close()
		m.Size.Set(backend)
		require.NoError(b, backend.Sync(b.Context()))
		for b.Loop() {
			traffic, err := backend.CountTraffic(b.Context())
			require.NoError(b, err)
			require.Len(b, traffic, m.Size.Services)
		}
	})
}

func BenchmarkCounters(b *testing.B) {
	for name, counted := range map[string]bool{"with": true, "without": false} {
		b.Run(name, func(b *testing.B) {
			each(b, backendtest.Sizes(10, 10_000), func(m backendtest.Bench, b *testing.B) {
				m.New = func() backendtest.Backend { return newBackend(b, nft.Options{CountConnections: counted}) }
				b.Run("first", m.FullLoad)
				b.Run("change", m.OneEndpointChanged)
			})
		})
	}
}
