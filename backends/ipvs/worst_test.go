package ipvs

import (
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
)

// The work is the calls to IPVS and the interface that change something, and the objects in transactions of nftables.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	backendtest.Tenants{
		Price: backendtest.Price{Service: 2, Port: 3, Frontend: 4, Range: 2, Destination: 1, Bytes: 65},
		Text:  backendtest.Unchanged,
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			k := newKernel(t)
			b := k.start(t, func(o *Options) { o.Limits = limits })
			var work backendtest.Work
			k.nft.FailApply = func(tx *nft.Transaction) error {
				work.Add(strings.Count(tx.Text(), "\n"), len(tx.Text()))
				return nil
			}
			return b, func() backendtest.Work {
				writes := k.ipvs.TakeCalls().Writes
				work.Add(len(writes), len(strings.Join(writes, "\n")))
				return work.Take()
			}
		}}.Search(t)
}
