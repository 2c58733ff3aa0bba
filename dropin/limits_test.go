package dropin

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// A service that exceeds a limit set by the operator is not served, in any mode, and everything else is.
func TestTheLimitsOfServicesAndNamespacesAreFlags(t *testing.T) {
	t.Setenv(networkVariable, hnsNetwork)
	for _, m := range modes() {
		t.Run(string(m.name), func(t *testing.T) {
			r := newRig(t, append(cluster(),
				kube.Service("evil/ports").ClusterIP("10.96.0.11").Port("a", 80).Port("b", 81).Port("c", 82).Build(),
				kube.Service("evil/second").ClusterIP("10.96.0.12").Port("http", 80).Build())...)
			stop := r.start(t, "--proxy-mode="+string(m.name), "--cluster-cidr=10.244.0.0/16",
				"--service-limits=frontends=2", "--namespace-limits=frontends=2,destinations=10")
			for _, want := range []string{`1 of its addresses are not served: a service may have 2 frontends`,
				`the services of a namespace may have 2 frontends together`} {
				r.waitLogged(t, want)
			}
			require.NoError(t, stop())
			assert.NotContains(t, r.logged(), `"port"="default/web`)
		})
	}
}

func TestInvalidLimitsAreErrors(t *testing.T) {
	c := Config{Limits: frontend.Limits{Namespace: frontend.Budget{Destinations: -1}}}
	_, err := c.Check()
	assert.EqualError(t, err, "limits: must not be negative")
}
