package iptables_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The work is the number of rules that are written. A bystander's may be in one group with others', of bounded size.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	backendtest.Tenants{PerUnit: 6, Slack: 200, New: func(t *testing.T) (backendtest.TenantBackend, func() int) {
		fake, work := dataplane.NewFake(model.IPv4), 0
		fake.FailRestore = func(b *dataplane.Batch) error {
			for _, table := range b.Tables {
				work += len(table.Chains) + len(table.Remove)
				for _, c := range table.Chains {
					work += len(c.Rules)
				}
			}
			return nil
		}
		o := iptables.Options{Dataplanes: []dataplane.Interface{fake}, Common: frontend.Common{}}.Looking(-1)
		b, err := iptables.New(t.Context(), o)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		return b, func() int { n := work; work = 0; return n }
	}}.Search(t, 20)
}
