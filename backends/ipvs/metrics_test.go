package ipvs

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metered is a backend with metrics.
type metered struct {
	*kernel
	*Backend
	reg *prometheus.Registry
}

func newMetered(t *testing.T) *metered {
	k, reg := newKernel(t), prometheus.NewPedanticRegistry()
	return &metered{k, k.start(t, func(o *Options) { o.Metrics = reg }), reg}
}

// values returns the metrics of IPv4.
func (m *metered) values(t *testing.T) map[string]float64 {
	t.Helper()
	values := map[string]float64{}
	for key, n := range backendtest.Metrics(t, m.reg, "kubeproxy_sync_proxy_rules_") {
		if name, ok := strings.CutSuffix(key, " IPv4"); ok {
			values[strings.TrimPrefix(name, "ipvs_")] = n
		}
	}
	return values
}

func TestMetricsComeAndGoTogether(t *testing.T) {
	m := newMetered(t)
	lint, err := testutil.GatherAndLint(m.reg)
	require.NoError(t, err)
	require.Empty(t, lint)
	zero := map[string]float64{"nftables_sync_failures_total": 0, "requests_total": 0, "request_failures_total": 0,
		"resyncs_total": 0, "repairs_total": 0, "virtual_servers": 0, "draining_endpoints": 0}
	require.Equal(t, zero, m.values(t), "they are there before the first Sync")
	require.Len(t, backendtest.Metrics(t, m.reg, ""), 2*len(zero), "for both families")

	taken := m.kernel.options()
	taken.Metrics = m.reg
	_, err = New(t.Context(), taken)
	require.ErrorContains(t, err, "ipvs: metrics: ")
	require.Len(t, backendtest.Metrics(t, m.reg, ""), 2*len(zero), "the first backend's stay")

	require.NoError(t, m.Close())
	n, err := testutil.GatherAndCount(m.reg)
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestMetricsOfARun(t *testing.T) {
	m := newMetered(t)
	put(t, m.Backend, web()...)
	got := m.values(t)
	calls := m.ipvs.TakeCalls()
	require.Equal(t, map[string]float64{"nftables_sync_failures_total": 0, "requests_total": 2 + 2 + 4 + 1,
		"request_failures_total": 0, "resyncs_total": 1, "repairs_total": 0, "virtual_servers": 2,
		"draining_endpoints": 0}, got, "2 lists, 2 virtual servers with 2 endpoints each, and their address: %v", calls)

	deletePod1(t, m.Backend)
	tcp := key("10.96.0.10:80", model.TCP)
	m.ipvs.SetConnections(tcp, pod1, 1, 0)
	m.drain(t, model.IPv4)
	got = m.values(t)
	require.EqualValues(t, 1, got["draining_endpoints"], "TCP's")
	require.EqualValues(t, 9+2+1, got["requests_total"], "one has weight 0, one is deleted, one is looked at")
	m.ipvs.SetConnections(tcp, pod1, 0, 0)
	m.drain(t, model.IPv4)
	require.Zero(t, m.values(t)["draining_endpoints"])

	m.ForceResync()
	require.NoError(t, m.Sync(t.Context()))
	require.EqualValues(t, 2, m.values(t)["resyncs_total"])

	table := nft.NewTransaction(nft.TableKey{Family: model.IPv4, Name: tableName})
	table.DeleteTable()
	require.NoError(t, m.nft.ApplyAsSomebodyElse(table))
	require.Eventually(t, func() bool { return m.values(t)["repairs_total"] == 1 }, time.Minute, time.Millisecond)

	require.NoError(t, m.CleanUp(t.Context()))
	got = m.values(t)
	require.Zero(t, got["virtual_servers"])
	require.Zero(t, got["request_failures_total"])
}

func TestFailuresAreCounted(t *testing.T) {
	m := newMetered(t)
	put(t, m.Backend, web()...)
	m.ipvs.SetFail(func(call string) error {
		if strings.HasPrefix(call, "delete endpoint") {
			return errors.New("made to fail")
		}
		return nil
	})
	udp := web()[3].(*model.Endpoint).Key()
	m.DeleteEndpoint(udp)
	require.ErrorContains(t, m.Sync(t.Context()), "made to fail")
	require.EqualValues(t, 1, m.values(t)["request_failures_total"])
	require.EqualValues(t, 1, m.values(t)["resyncs_total"])
	m.ipvs.SetFail(nil)
	require.NoError(t, m.Sync(t.Context()))
	got := m.values(t)
	require.EqualValues(t, 1, got["request_failures_total"])
	require.EqualValues(t, 2, got["resyncs_total"], "after a failure the kernel is read")

	m.nft.FailApply = func(*nft.Transaction) error { return errors.New("made to fail") }
	m.DeleteService(web()[0].(*model.Service).Name)
	require.ErrorContains(t, m.Sync(t.Context()), "made to fail")
	require.EqualValues(t, 1, m.values(t)["nftables_sync_failures_total"])
}

func TestDeletingAMissingObjectIsNotAFailure(t *testing.T) {
	m := newMetered(t)
	put(t, m.Backend, web()...)
	udp := key("10.96.0.10:80", model.UDP)
	require.NoError(t, m.ipvs.DeleteDestination(t.Context(), udp, pod1))
	m.DeleteEndpoint(web()[3].(*model.Endpoint).Key())
	require.NoError(t, m.Sync(t.Context()))
	require.Zero(t, m.values(t)["request_failures_total"])
}
