package hns

import (
	"strings"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
)

// The work is the calls that change something.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	backendtest.Tenants{
		Price: backendtest.Price{Frontend: 1, Endpoint: 1, Bytes: 50},
		Text:  backendtest.Unchanged,
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			m := newMachine(t)
			return m.start(t, func(o *Options) { o.Limits = limits }), func() backendtest.Work {
				writes := m.writes()
				return backendtest.Work{Items: len(writes), Bytes: len(strings.Join(writes, "\n"))}
			}
		}}.Search(t)
}
