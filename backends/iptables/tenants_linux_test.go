package iptables_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// onKernel counts what is written to the kernel.
type onKernel struct {
	dataplane.Interface
	work *backendtest.Work
}

func (c onKernel) Restore(ctx context.Context, b *dataplane.Batch) error {
	countRules(c.work, b)
	return c.Interface.Restore(ctx, b)
}

// The same on the kernel, which takes all that the fake takes. All pairs take minutes.
func TestNoTenantCostsTheKernelMoreThanItAsksFor(t *testing.T) {
	testkit.NeedRoot(t)
	needPrograms(t, dataplane.NFT)
	backendtest.Tenants{Price: tenantPrice(), Slack: tenantSlack, Few: true, Pairs: need.IsDeep(),
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			testkit.EnterNamespace(t)
			kernel, err := dataplane.New(t.Context(), dataplane.Options{Family: model.IPv4, Variant: dataplane.NFT})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, kernel.Close()) })
			var work backendtest.Work
			o := iptables.Options{Dataplanes: []dataplane.Interface{onKernel{kernel, &work}},
				Common: frontend.Common{Limits: limits}}
			b, err := iptables.New(t.Context(), o.CheckingEvery(-1))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			return b, work.Take
		}}.Search(t)
}
