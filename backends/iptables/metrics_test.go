package iptables_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// rulesIn counts rules of ours by table, in a dump or in what iptables-restore reads.
func rulesIn(text string) map[string]float64 {
	rules := map[string]float64{"nat": 0, "filter": 0}
	table := ""
	for line := range strings.Lines(text) {
		if line[0] == '*' {
			table = strings.TrimSpace(line[1:])
		}
		if (strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, "-I ")) && strings.Contains(line, "KPL-") {
			rules[table]++
		}
	}
	return rules
}

// checkCounts compares the counts of rules with what is active, and with what the last Sync did.
func (r *rig) checkCounts(reg prometheus.Gatherer) {
	r.t.Helper()
	have, want := map[string]float64{}, map[string]float64{}
	for key, n := range backendtest.Metrics(r.t, reg, "kubeproxy_sync_proxy_rules_iptables_") {
		if !strings.Contains(key, "failures") {
			have[key] = n
		}
	}
	for _, f := range model.Families() {
		for table, n := range rulesIn(r.dump(f)) {
			want["total "+f.String()+" "+table] = n
		}
		written := ""
		for _, b := range r.fakes[f].Batches() {
			if text := b.String(); !strings.Contains(text, "-A KPL-PROBE") {
				written = text
			}
		}
		for table, n := range rulesIn(written) {
			want["last "+f.String()+" "+table] = n
		}
	}
	require.Equal(r.t, want, have)
}

// failures returns the counts of failures of one family: all, and those of restores of changes alone.
func (r *rig) failures(reg prometheus.Gatherer, f model.Family) (all, partial float64) {
	values := backendtest.Metrics(r.t, reg, "kubeproxy_sync_proxy_rules_iptables_")
	return values["restore_failures_total "+f.String()], values["partial_restore_failures_total "+f.String()]
}

func TestMetricsHaveTheNamesAndLabelsOfKubeProxy(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}})
	r.Set(fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(),
		fm.Endpoint("default/web:http/TCP", "10.244.1.5:80").Build())
	r.Sync()
	r.fakes[model.IPv4].Count("kpl_ct_state_invalid_dropped", 2)
	r.fakes[model.IPv4].Count("kpl_localhost_nps_accepted", 3)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP kubeproxy_iptables_ct_state_invalid_dropped_packets_total Packets that were dropped because connection tracking does not know their connection
# TYPE kubeproxy_iptables_ct_state_invalid_dropped_packets_total counter
kubeproxy_iptables_ct_state_invalid_dropped_packets_total 2
# HELP kubeproxy_iptables_localhost_nodeports_accepted_packets_total Connections and UDP flows to node ports on loopback addresses that were accepted
# TYPE kubeproxy_iptables_localhost_nodeports_accepted_packets_total counter
kubeproxy_iptables_localhost_nodeports_accepted_packets_total 3
# HELP kubeproxy_sync_proxy_rules_iptables_last Rules that the last Sync or repair wrote to the table
# TYPE kubeproxy_sync_proxy_rules_iptables_last gauge
kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv4",table="filter"} 8
kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv4",table="nat"} 9
kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv6",table="filter"} 8
kubeproxy_sync_proxy_rules_iptables_last{ip_family="IPv6",table="nat"} 7
# HELP kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total Failed runs of iptables-restore that wrote changes only; a full comparison follows
# TYPE kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total counter
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"} 0
# HELP kubeproxy_sync_proxy_rules_iptables_restore_failures_total Failed runs of iptables-restore
# TYPE kubeproxy_sync_proxy_rules_iptables_restore_failures_total counter
kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv6"} 0
# HELP kubeproxy_sync_proxy_rules_iptables_total Rules of the proxy in the table
# TYPE kubeproxy_sync_proxy_rules_iptables_total gauge
kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="filter"} 8
kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv4",table="nat"} 9
kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv6",table="filter"} 8
kubeproxy_sync_proxy_rules_iptables_total{ip_family="IPv6",table="nat"} 7
`)))
	require.NoError(t, r.backend.Close())
	n, err := testutil.GatherAndCount(reg)
	require.NoError(t, err)
	assert.Zero(t, n, "the metrics go with the backend")
}

func TestRulesAreCounted(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}})
	assert.Empty(t, backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_iptables_total"),
		"nothing is known before the first Sync")
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	r.checkCounts(reg)

	r.Set(fm.Endpoint("default/web:http/TCP", "[fd00:244:1::7]:8080").Build())
	r.Sync()
	r.checkCounts(reg)
	assert.Zero(t, backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_iptables_")["last IPv4 nat"],
		"nothing to do")

	r.Set(manyServices(300, 3)...)
	r.Sync()
	r.checkCounts(reg)
	for _, v := range manyServices(300, 3) {
		if s, ok := v.(*model.Service); ok && s.Name.Name != "s7" {
			r.Delete(s.Name)
		}
	}
	r.Sync()
	r.checkCounts(reg)

	r.Restart()
	r.Sync()
	r.checkCounts(reg)

	require.NoError(t, r.fakes[model.IPv4].Load("*nat\nCOMMIT\n"))
	r.backend.ForceResync()
	r.Sync()
	r.checkCounts(reg)

	require.NoError(t, r.backend.CleanUp(t.Context()))
	for key, n := range backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_iptables_total") {
		assert.Zero(t, n, key)
	}
	r.Sync()
	r.checkCounts(reg)
}

func TestRestoresThatFailAreCounted(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}})
	fake := r.fakes[model.IPv6]
	check := func(all, partial float64) {
		t.Helper()
		haveAll, havePartial := r.failures(reg, model.IPv6)
		assert.Equal(t, [2]float64{all, partial}, [2]float64{haveAll, havePartial})
		haveAll, havePartial = r.failures(reg, model.IPv4)
		assert.Equal(t, [2]float64{}, [2]float64{haveAll, havePartial}, "nothing failed")
	}
	fail := func(*dataplane.Batch) error { return errors.New("made to fail") }
	fake.FailRestore = fail
	r.Set(backendtest.EveryFeature()...)
	require.Error(t, r.TrySync())
	check(1, 0)
	assert.NotContains(t, backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_iptables_"), "total IPv6 nat")
	fake.FailRestore = nil
	r.Sync()
	check(1, 0)
	r.checkCounts(reg)
	before := backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_iptables_")

	fake.FailRestore = fail
	r.Set(fm.Endpoint("default/web:http/TCP", "[fd00:244:1::7]:8080").Build())
	require.Error(t, r.TrySync())
	check(2, 1)
	for _, key := range []string{"total IPv6 nat", "last IPv6 nat"} {
		assert.Equal(t, before[key], backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_iptables_")[key])
	}
	require.Error(t, r.TrySync())
	check(3, 1) // that was a full one
	fake.FailRestore = nil
	r.Sync()
	check(3, 1)
	r.checkCounts(reg)
}

func TestAServiceThatIsRefusedFailsOneRestore(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}})
	r.Set(backendtest.EveryFeature()...)
	r.Sync()
	fake := r.fakes[model.IPv4]
	fake.FailRule = func(_ dataplane.Table, _, rule string) error {
		if strings.Contains(rule, "10.244.9.9:1") {
			return errors.New("no such match")
		}
		return nil
	}
	r.Set(fm.Service("default/bad").ClusterIP("10.96.0.99").Port("http", 80).Build(),
		fm.Endpoint("default/bad:http/TCP", "10.244.9.9:1").Build())
	for range 2 {
		var refused *sink.PortError
		require.ErrorAs(t, r.TrySync(), &refused)
		all, partial := r.failures(reg, model.IPv4)
		assert.Equal(t, [2]float64{1, 1}, [2]float64{all, partial}, "the next Sync does not try again")
		values := backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_iptables_")
		assert.Equal(t, rulesIn(r.dump(model.IPv4))["nat"], values["total IPv4 nat"])
	}
}

func TestRepairsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		r := newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}}.CheckingEvery(time.Second))
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		fake := r.fakes[model.IPv4]
		failures := 3
		fake.FailRestore = func(*dataplane.Batch) error {
			if failures == 0 {
				return nil
			}
			failures--
			return errors.New("made to fail")
		}
		for _, fake := range r.fakes {
			fake.ResetBatches()
			require.NoError(t, fake.Load("*nat\nCOMMIT\n"))
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		all, partial := r.failures(reg, model.IPv4)
		assert.Equal(t, [2]float64{3, 0}, [2]float64{all, partial}, "a repair compares everything")
		r.checkCounts(reg)
	})
}

func TestWhatCtxEndsIsNoFailure(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := newRig(t, iptables.Options{Common: frontend.Common{Metrics: reg}})
	ctx, cancel := context.WithCancel(t.Context())
	r.fakes[model.IPv4].FailRestore = func(*dataplane.Batch) error { cancel(); return ctx.Err() }
	r.Set(backendtest.EveryFeature()...)
	require.Error(t, r.Wave(ctx))
	all, _ := r.failures(reg, model.IPv4)
	assert.Zero(t, all)
}

func TestMetricsThatAreTakenAreReported(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := newRig(t, iptables.Options{Common: frontend.Common{
		Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"node": "one"}, reg)}})
	_, err := iptables.New(t.Context(), r.options)
	require.ErrorContains(t, err, "metrics: ")
	r.options.Metrics = prometheus.WrapRegistererWith(prometheus.Labels{"node": "other"}, reg)
	other, err := iptables.New(t.Context(), r.options)
	require.NoError(t, err)
	require.NoError(t, other.Close())
}
