package nft_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// onKernel counts what is written to the kernel.
type onKernel struct {
	dataplane.Interface
	work *backendtest.Work
}

func (c onKernel) Apply(ctx context.Context, tx *dataplane.Transaction) error {
	text := tx.Text()
	c.work.Add(strings.Count(text, "\n"), len(text))
	return c.Interface.Apply(ctx, tx)
}

// The same on the kernel, which takes all that the fake takes. All pairs take minutes.
func TestNoTenantCostsTheKernelMoreThanItAsksFor(t *testing.T) {
	testkit.NeedRoot(t)
	backendtest.Tenants{Price: tenantPrice(), Few: true, Pairs: need.IsDeep(),
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			testkit.EnterNamespace(t)
			kernel, err := dataplane.NewNetlink()
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, kernel.Close()) })
			var work backendtest.Work
			b, err := nft.New(t.Context(), nft.Options{Dataplane: onKernel{kernel, &work},
				Common: frontend.Common{Families: []model.Family{model.IPv4}, Limits: limits}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			return b, work.Take
		}}.Search(t)
}
