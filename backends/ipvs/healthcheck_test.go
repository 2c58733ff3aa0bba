package ipvs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// Load balancers probe the VIP at the health-check port (kubernetes#117723). The node's other ports stay unreachable
// there, and so does this one at cluster IPs.
func TestHealthChecksGetThroughAtVIPs(t *testing.T) {
	checked := func(name, ip, vip string, port uint16) *model.Service {
		return fm.Service(name).ClusterIP(ip).LoadBalancerIP(vip).ExternalIP("198.51.100.1").Port("http", 80).
			Port("https", 443).ExternalLocal().HealthCheck(port, 1, 0).Build()
	}
	k := newKernel(t)
	b := k.start(t)
	expect := func(want int) {
		t.Helper()
		table, err := k.nft.ReadTable(t.Context(), nft.TableKey{Family: model.IPv4, Name: tableName}, nil)
		require.NoError(t, err)
		require.Len(t, table.Sets["health-checks"].Elements, want)
	}
	web := checked("default/web", "10.96.0.10", "203.0.113.1", 32000)
	put(t, b, backendtest.Node(), web)
	expect(1)
	require.Contains(t, k.table(model.IPv4), "ip daddr != 10.96.0.0/12 meta l4proto . th dport @health-checks "+
		"dnat to ip daddr")

	// By mistake another one has the same port, and then another port.
	same, another := checked("default/b", "10.96.0.11", "203.0.113.2", 32000), checked("default/b", "10.96.0.11",
		"203.0.113.2", 32001)
	put(t, b, same)
	expect(1)
	put(t, b, another)
	expect(2)
	before := k.sorted(model.IPv4)
	b.ForceResync()
	put(t, b)
	require.Equal(t, before, k.sorted(model.IPv4))
	b.DeleteService(another.Name)
	put(t, b)
	expect(1)

	put(t, b, fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	expect(0)
}
