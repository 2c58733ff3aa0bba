package ipvs

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
)

// The work is the number of calls to IPVS and the interface that change something.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	backendtest.Tenants{Products: true, PerUnit: 3, Slack: 0, New: func(t *testing.T) (backendtest.TenantBackend, func() int) {
		k := newKernel(t)
		return k.start(t), func() int { return len(k.ipvs.TakeCalls().Writes) }
	}}.Search(t, 20)
}
