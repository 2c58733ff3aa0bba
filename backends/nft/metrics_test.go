package nft_test

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func TestMetricsHaveTheNamesAndLabelsOfKubeProxy(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	r := newRig(t, nft.Options{Common: frontend.Common{Metrics: reg}})
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total Failed attempts to remove obsolete objects
# TYPE kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total counter
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family="IPv6"} 0
# HELP kubeproxy_sync_proxy_rules_nftables_sync_failures_total Failed attempts to apply changes or the full state
# TYPE kubeproxy_sync_proxy_rules_nftables_sync_failures_total counter
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv4"} 0
kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family="IPv6"} 0
`)))
	require.NoError(t, nft.CleanUp(t.Context(), r.options), "it has no metrics")
	require.NoError(t, r.backend.Close())
	n, err := testutil.GatherAndCount(reg)
	require.NoError(t, err)
	assert.Zero(t, n, "the metrics go with the backend")
}

// failing is a rig on which the first transactions of one family come out as errs say.
type failing struct {
	*rig
	reg    *prometheus.Registry
	family model.Family
	errs   []error
}

func newFailing(t *testing.T, f model.Family) *failing {
	reg := prometheus.NewPedanticRegistry()
	r := &failing{rig: newRig(t, nft.Options{Common: frontend.Common{Metrics: reg}}), reg: reg, family: f}
	apply := r.fake.FailApply
	r.fake.FailApply = func(tx *dataplane.Transaction) error {
		if tx.Table.Family == f && len(r.errs) > 0 {
			err := r.errs[0]
			if r.errs = r.errs[1:]; err != nil {
				return err
			}
		}
		return apply(tx)
	}
	r.Set(backendtest.EveryFeature()...)
	return r
}

func (r *failing) check(syncs, cleanUps float64) {
	r.t.Helper()
	want := map[string]float64{}
	for _, f := range model.Families() {
		want["sync_failures_total "+f.String()], want["cleanup_failures_total "+f.String()] = 0, 0
	}
	want["sync_failures_total "+r.family.String()], want["cleanup_failures_total "+r.family.String()] = syncs, cleanUps
	assert.Equal(r.t, want, backendtest.Metrics(r.t, r.reg, "kubeproxy_sync_proxy_rules_nftables_"))
}

func TestFailuresAreCounted(t *testing.T) {
	broken, stale := errors.New("made to fail"), dataplane.ErrStale
	for name, c := range map[string]struct {
		errs            []error
		want            error
		syncs, cleanUps float64
	}{
		"nothing fails": {},
		"changes are refused, and everything is compared": {errs: []error{broken}, syncs: 1},
		"changes are refused, and what the comparison finds": {errs: []error{broken, broken}, want: broken,
			syncs: 2},
		"what is no longer needed cannot be removed, which is no failure of the Sync": {errs: []error{nil, broken},
			cleanUps: 1},
		"somebody else is faster":                                 {errs: []error{stale, stale}},
		"somebody else is faster when nothing is needed any more": {errs: []error{nil, stale}},
		"somebody else is always faster": {errs: []error{stale, stale, stale, stale, stale, stale}, want: stale,
			syncs: 1},
	} {
		for _, f := range model.Families() {
			t.Run(name+", "+f.String(), func(t *testing.T) {
				r := newFailing(t, f)
				target := map[model.Family]string{model.IPv4: "10.244.1.6:8080", model.IPv6: "[fd00:244:1::6]:8080"}[f]
				more := fm.Endpoint("default/web:http/TCP", target).Build()
				r.Set(more)
				r.Sync()
				r.Delete(more)
				r.errs = c.errs
				err := r.TrySync()
				require.ErrorIs(t, err, c.want)
				require.Empty(t, r.errs)
				r.check(c.syncs, c.cleanUps)
				r.Sync()
				r.check(c.syncs, c.cleanUps)
				assert.NotContains(t, r.dump(f), strings.Trim(strings.TrimSuffix(target, ":8080"), "[]"))
			})
		}
	}
}

// What cannot be removed in Sync after Sync, as before Linux 6.2, is logged once a minute.
func TestObsoleteObjectsAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newFailing(t, model.IPv4)
		r.Sync()
		lines := 0
		ctx := klog.NewContext(t.Context(), funcr.New(func(_, line string) {
			assert.Contains(t, line, "Obsolete objects cannot be removed yet")
			lines++
		}, funcr.Options{}))
		more := fm.Endpoint("default/web:http/TCP", "10.244.1.6:8080").Build()
		for range 100 {
			r.Set(more)
			r.errs = nil
			require.NoError(t, r.Wave(t.Context()))
			r.Delete(more)
			r.errs = []error{nil, syscall.EBUSY}
			require.NoError(t, r.Wave(ctx))
			time.Sleep(time.Second)
		}
		assert.Equal(t, 2, lines)
	})
}

func TestAFirstSyncThatFailsIsCounted(t *testing.T) {
	r := newFailing(t, model.IPv6)
	r.errs = []error{errors.New("made to fail")}
	require.Error(t, r.TrySync())
	r.check(1, 0)
}

func TestWhatIsToBeDoneAnywayIsNoFailure(t *testing.T) {
	r := newFailing(t, model.IPv4)
	r.Sync()
	r.Set(fm.Node("n1").IP("192.0.2.10").LocalPods(model.LocalPods{InterfacePrefix: "veth"}).Build())
	r.Sync() // everything is compared
	r.check(0, 0)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, pod := range []string{"10.244.1.6:8080", "10.244.1.7:8080"} { // changes, and then everything
		r.Set(fm.Endpoint("default/web:http/TCP", pod).Build())
		require.ErrorIs(t, r.Wave(ctx), context.Canceled)
		r.check(0, 0)
	}
}

func TestRepairsThatFailAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewPedanticRegistry()
		r := newRigThat(t, nft.Options{Common: frontend.Common{Metrics: reg}}, true)
		defer r.backend.Close()
		r.Set(backendtest.EveryFeature()...)
		r.Sync()
		before, failures := r.dumps(), 3
		r.fail = func() error {
			if failures == 0 {
				return nil
			}
			failures--
			return errors.New("made to fail")
		}
		tx := dataplane.NewTransaction(dataplane.TableKey{Family: model.IPv6, Name: nft.DefaultTableName})
		tx.DeleteTable()
		require.NoError(t, r.fake.ApplyAsSomebodyElse(tx))
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, before, r.dumps())
		got := backendtest.Metrics(t, reg, "kubeproxy_sync_proxy_rules_nftables_")
		assert.Equal(t, 3., got["sync_failures_total IPv6"])
	})
}

func TestMetricsThatAreTakenAreReported(t *testing.T) {
	reg := prometheus.NewRegistry()
	r := newRig(t, nft.Options{Common: frontend.Common{
		Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"node": "one"}, reg)}})
	_, err := nft.New(t.Context(), r.options)
	require.ErrorContains(t, err, "metrics: ")
	r.options.Metrics = prometheus.WrapRegistererWith(prometheus.Labels{"node": "other"}, reg)
	other, err := nft.New(t.Context(), r.options)
	require.NoError(t, err)
	require.NoError(t, other.Close())
}
