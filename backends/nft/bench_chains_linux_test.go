package nft_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// BenchmarkBesideChains replaces an endpoint without affinity beside chains that have nothing to do with it, not even
// the table: at every commit the kernel walks all chains of the network namespace (nf_tables_commit), for those that
// may have new rules. Processor time.
func BenchmarkBesideChains(b *testing.B) {
	for _, chains := range []int{0, 8000, 16000, 32000, 64000, 512000} {
		b.Run(fmt.Sprint(chains), func(b *testing.B) {
			testkit.EnterNamespace(b)
			kernel, err := dp.NewNetlink()
			require.NoError(b, err)
			other := dp.TableKey{Family: model.IPv6, Name: "other"}
			for have := 0; have < chains; {
				tx := dp.NewTransaction(other)
				if have == 0 {
					tx.AddTable("")
				}
				for range 4000 {
					tx.AddChain(&dp.Chain{Name: fmt.Sprint("c", have)})
					have++
				}
				require.NoError(b, kernel.Apply(b.Context(), tx))
			}
			require.NoError(b, kernel.Close())
			backend := newBackend(b, nft.Options{})
			eps := neighbour(backend, 0)
			require.NoError(b, backend.Sync(b.Context()))
			runtime.GC()
			watch := backendtest.NewStopwatch(b)
			for i := 0; b.Loop(); i++ {
				backend.DeleteEndpoint(eps[i%2].Key())
				backend.SetEndpoint(eps[(i+1)%2])
				watch.Time(func() { require.NoError(b, backend.Sync(b.Context())) })
			}
			require.NoError(b, backend.Close())
		})
	}
}
