package nft_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The work is the number of elements, rules and other objects in transactions.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	backendtest.Tenants{PerUnit: 9, Slack: 4, New: func(t *testing.T) (backendtest.TenantBackend, func() int) {
		fake, work := dataplane.NewFake(), 0
		fake.FailApply = func(tx *dataplane.Transaction) error {
			work += strings.Count(tx.Text(), "\n")
			return nil
		}
		b, err := nft.New(t.Context(), nft.Options{Dataplane: fake, Common: frontend.Common{Families: []model.Family{model.IPv4}}})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b, func() int { n := work; work = 0; return n }
	}}.Search(t, 20)
}
