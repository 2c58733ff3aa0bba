package iptables_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The work is the rules and chains that are written. A bystander's rules may be in one chain with others', which has 96
// at most, and two Syncs write it.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	backendtest.Tenants{Price: tenantPrice(), Slack: tenantSlack, Pairs: true,
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			fake := dataplane.NewFake(model.IPv4)
			o := iptables.Options{Dataplanes: []dataplane.Interface{fake}, Common: frontend.Common{Limits: limits}}
			b, err := iptables.New(t.Context(), o.CheckingEvery(-1))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			var work backendtest.Work
			fake.FailRestore = func(b *dataplane.Batch) error {
				countRules(&work, b)
				return nil
			}
			return b, work.Take
		}}.Search(t)
}

const tenantSlack = 2 * 96

func tenantPrice() backendtest.Price {
	return backendtest.Price{Service: 2, Port: 12, Frontend: 2, Range: 2, Endpoint: 2, Bytes: 165,
		Rewritten: 2 * 128, StickyRewritten: 2 * 2048}
}

func countRules(work *backendtest.Work, b *dataplane.Batch) {
	for _, table := range b.Tables {
		work.Add(len(table.Chains)+len(table.Remove), 0)
		for _, c := range table.Chains {
			work.Add(len(c.Rules), len(strings.Join(c.Rules, "\n")))
		}
	}
}
