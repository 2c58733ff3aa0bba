package nft_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The work is the elements, rules and other objects in transactions.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	numbers := regexp.MustCompile(`endpoints-\d+`) // of maps that have become too small
	backendtest.Tenants{
		Price: tenantPrice(),
		Pairs: true,
		Text:  func(description string) string { return numbers.ReplaceAllString(description, "endpoints") },
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			fake := dataplane.NewFake()
			b, err := nft.New(t.Context(), nft.Options{Dataplane: fake,
				Common: frontend.Common{Families: []model.Family{model.IPv4}, Limits: limits}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			var work backendtest.Work
			fake.FailApply = func(tx *dataplane.Transaction) error {
				text := tx.Text()
				work.Add(strings.Count(text, "\n"), len(text))
				return nil
			}
			return b, work.Take
		}}.Search(t)
}

func tenantPrice() backendtest.Price {
	return backendtest.Price{Service: 4, Port: 8, Frontend: 2, Range: 2, Endpoint: 2, Destination: 1,
		MaxDestinations: 1024, StickyPort: 3, Bytes: 140, StickyBytes: 180, StickyRewritten: 2 * 256}
}
