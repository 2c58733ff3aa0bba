package hns

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
)

// The work is the number of calls that change something.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	backendtest.Tenants{Products: true, PerUnit: 3, Slack: 0, New: func(t *testing.T) (backendtest.TenantBackend, func() int) {
		m := newMachine(t)
		return m.start(t), func() int { return len(m.writes()) }
	}}.Search(t, 20)
}
