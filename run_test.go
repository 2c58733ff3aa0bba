package kubeproxy_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// manual is a source that the test drives.
type manual struct {
	watch.Handler // set while Run runs
	started       chan struct{}
	ended         chan error // what Run returns early
}

func newManual() *manual { return &manual{started: make(chan struct{}), ended: make(chan error, 1)} }

func (m *manual) Run(ctx context.Context, _ string, h watch.Handler) error {
	m.Handler = h
	close(m.started)
	select {
	case <-ctx.Done():
		return nil
	case err := <-m.ended:
		return err
	}
}

func set(objs ...metav1.Object) (changes []watch.Change) {
	for _, o := range objs {
		changes = append(changes, watch.Change{Object: o})
	}
	return changes
}

func service(name, ip string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
}

// slice has an endpoint on node-1 for each address.
func slice(service string, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: service + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
	}
	for _, a := range addrs {
		if strings.Contains(a, ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}, NodeName: ptr.To("node-1")})
	}
	return s
}

// local returns a feed that works the state out from a source.
func local(src watch.Source) *kubeproxy.LocalFeed { return &kubeproxy.LocalFeed{Source: src} }

// start runs the proxy in a synctest bubble. The returned function ends it and returns Run's error.
func start(t *testing.T, opts kubeproxy.Options) (stop func() error) {
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), testr.New(t)))
	result := make(chan error, 1)
	go func() { result <- kubeproxy.Run(ctx, opts) }()
	if f, ok := opts.Feed.(*kubeproxy.LocalFeed); ok {
		if m, ok := f.Source.(*manual); ok {
			<-m.started
		}
	}
	synctest.Wait()
	return func() error {
		cancel()
		return <-result
	}
}

// ops returns the calls in each wave since the last time, in short form.
func ops(r *sink.Recorder) (waves []string) {
	for _, w := range r.TakeWaves() {
		var calls []string
		for _, c := range w.Calls {
			calls = append(calls, string(c.Op))
		}
		waves = append(waves, strings.Join(calls, " "))
	}
	return waves
}

func TestNothingIsPutInForceBeforeEverythingIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec})
		src.Update(set(service("a", "10.96.0.1"))...)
		time.Sleep(24 * time.Hour)
		assert.Empty(t, rec.TakeWaves())

		src.Update(set(slice("a", "10.0.0.1"))...)
		src.Synced()
		synctest.Wait()
		assert.Equal(t, []string{"SetNode SetService SetEndpoint"}, ops(rec))
		require.NoError(t, stop())
		assert.Empty(t, rec.Violations())
	})
}

func TestAnEmptyClusterIsCompleteAndSyncedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, ResyncInterval: -1})
		src.Synced()
		time.Sleep(24 * time.Hour)
		assert.Equal(t, []string{"SetNode"}, ops(rec))
		require.NoError(t, stop())
	})
}

func TestChangesCoalesceWithinTheMinimumInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: 10 * time.Second})
		src.Synced()
		synctest.Wait()
		ops(rec)
		begin := time.Now()

		time.Sleep(time.Second)
		for i := range 5 {
			src.Update(set(service(fmt.Sprint("s", i), fmt.Sprint("10.96.0.", i+1)))...)
			time.Sleep(time.Second)
		}
		assert.Empty(t, ops(rec), "the interval is not over")
		wave, err := rec.NextWave(t.Context())
		require.NoError(t, err)
		assert.Len(t, wave.Calls, 5)
		assert.Equal(t, 10*time.Second, time.Since(begin))

		time.Sleep(time.Minute)
		begin = time.Now()
		src.Update(set(service("late", "10.96.1.1"))...)
		synctest.Wait()
		assert.Equal(t, []string{"SetService"}, ops(rec))
		assert.Zero(t, time.Since(begin), "a change after a pause does not wait")
		require.NoError(t, stop())
	})
}

func TestAChangeThatAltersNothingReachesNoSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		proxy := health.New(0)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, Health: proxy, MinInterval: -1})
		src.Update(set(service("a", "10.96.0.1"), slice("a", "10.0.0.1", "10.0.0.2"))...)
		src.Synced()
		synctest.Wait()
		ops(rec)
		applied := proxy.Family(model.IPv4).LastApplied

		time.Sleep(time.Second)
		src.Update(set(slice("a", "10.0.0.2", "10.0.0.1"))...)
		src.Update(set(service("a", "10.96.0.1"))...)
		src.Update(watch.Change{Object: slice("unknown"), Deleted: true})
		synctest.Wait()
		assert.Empty(t, ops(rec))
		assert.Equal(t, applied, proxy.Family(model.IPv4).LastApplied)
		assert.True(t, proxy.Family(model.IPv4).OldestPending.IsZero(),
			"a change that alters nothing does not wait for anything")
		require.NoError(t, stop())
	})
}

func TestAFailedSyncIsTriedAgainWithGrowingPausesAndAFullResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: time.Second,
			RetryInterval: 5 * time.Second})
		src.Synced()
		synctest.Wait()
		ops(rec)
		time.Sleep(time.Minute)

		down := errors.New("down")
		rec.FailNext(down, down, down, down, down)
		src.Update(set(service("a", "10.96.0.1"))...)
		synctest.Wait()
		assert.Equal(t, []string{"SetService"}, ops(rec))
		for _, pause := range []time.Duration{1, 2, 4, 5} { // capped at RetryInterval
			begin := time.Now()
			wave, err := rec.NextWave(t.Context())
			require.NoError(t, err)
			assert.Equal(t, pause*time.Second, time.Since(begin))
			assert.Equal(t, []string{"ResyncFailed", "Sync: down"}, wave.Lines())
		}

		src.Update(set(service("b", "10.96.0.2"))...)
		begin := time.Now()
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"SetService"}, ops(rec),
			"a change does not wait for the retry, but for the minimum interval, and brings no resync")
		wave, err := rec.NextWave(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"ResyncFailed", "Sync"}, wave.Lines())
		assert.Equal(t, 5*time.Second, time.Since(begin), "the retry comes when it was announced")

		time.Sleep(10 * time.Minute)
		assert.Empty(t, ops(rec), "everything is applied")
		require.NoError(t, stop())
		assert.Empty(t, rec.Violations())
	})
}

func TestTheFirstSyncIsTriedUntilItSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		rec.FailNext(errors.New("down"))
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: -1})
		begin := time.Now()
		src.Synced()
		for range 2 {
			_, err := rec.NextWave(t.Context())
			require.NoError(t, err)
		}
		assert.Equal(t, 100*time.Millisecond, time.Since(begin))
		require.NoError(t, stop())
	})
}

func TestAFullResyncComesPeriodically(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, ResyncInterval: time.Minute})
		src.Synced()
		synctest.Wait()
		ops(rec)
		for range 3 {
			begin := time.Now()
			wave, err := rec.NextWave(t.Context())
			require.NoError(t, err)
			assert.Equal(t, []string{"ForceResync", "Sync"}, wave.Lines())
			assert.Equal(t, time.Minute, time.Since(begin))
		}
		require.NoError(t, stop())
	})
}

func TestRunEndsWithAPermanentError(t *testing.T) {
	cause := errors.New("no such kernel module")
	for name, tc := range map[string]struct {
		act  func(*manual, *sink.Recorder)
		want string
	}{
		"of a Sync": {func(m *manual, r *sink.Recorder) {
			r.FailNext(errors.Join(&sink.FamilyError{Family: model.IPv6, Err: &sink.PermanentError{Err: cause}}))
			m.Synced()
		}, "sync: IPv6: no such kernel module"},
		"of the source": {func(m *manual, _ *sink.Recorder) { m.ended <- cause }, "source: no such kernel module"},
		"of a source that ends before it is synced": {func(m *manual, _ *sink.Recorder) { m.ended <- nil },
			"the feed ended before it had a complete state"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, rec := newManual(), &sink.Recorder{}
				result := make(chan error, 1)
				ctx := klog.NewContext(t.Context(), testr.New(t))
				go func() { result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: local(src), Sink: rec}) }()
				<-src.started
				tc.act(src, rec)
				assert.EqualError(t, <-result, tc.want)
			})
		})
	}
}

func TestAfterASourceEndedTheAppliedStateIsMaintained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, ResyncInterval: time.Minute})
		src.Update(set(service("a", "10.96.0.1"))...)
		src.Synced()
		src.ended <- nil
		synctest.Wait()
		ops(rec)
		time.Sleep(3*time.Minute + time.Second)
		assert.Equal(t, []string{"ForceResync", "ForceResync", "ForceResync"}, ops(rec))
		require.NoError(t, stop())
	})
}

func TestWrongOptionsAreAllReported(t *testing.T) {
	err := kubeproxy.Run(t.Context(), kubeproxy.Options{RetryInterval: -time.Second})
	assert.EqualError(t, err, "invalid options: no feed\nno sink\nretry interval -1s is negative")

	err = kubeproxy.Run(t.Context(), kubeproxy.Options{Feed: local(nil), Sink: &sink.Recorder{}})
	assert.EqualError(t, err, "invalid options: no source")

	err = kubeproxy.Run(t.Context(), kubeproxy.Options{Sink: &sink.Recorder{}, Feed: &kubeproxy.LocalFeed{
		Source: newManual(), State: localstate.Options{Families: []model.Family{5}}}})
	assert.ErrorContains(t, err, "families")
}

func TestEveryKindOfObjectIsTakenIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Sink: rec, MinInterval: -1,
			Feed: &kubeproxy.LocalFeed{Source: src, State: localstate.Options{NodeName: "node-1"}}})
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1",
			Labels: map[string]string{corev1.LabelTopologyZone: "zone-a"}}}
		cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "main"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12"}}}
		all := []metav1.Object{node, cidr, service("a", "10.96.0.1"), slice("a", "10.0.0.1"), &corev1.Pod{}}
		src.Update(set(all...)...)
		src.Synced()
		synctest.Wait()
		assert.Equal(t, "zone-a", rec.Node().Zone)
		assert.Len(t, rec.Node().ServiceCIDRs, 1)
		assert.Len(t, rec.Services(), 1)
		assert.Len(t, rec.Endpoints(), 1)

		for _, o := range all {
			src.Update(watch.Change{Object: o, Deleted: true})
		}
		synctest.Wait()
		assert.True(t, rec.Node().NotEligible)
		assert.Empty(t, rec.Node().ServiceCIDRs)
		assert.Empty(t, rec.Services())
		assert.Empty(t, rec.Endpoints())
		require.NoError(t, stop())
	})
}

func TestHealthTellsFamiliesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, proxy := newManual(), &sink.Recorder{}, health.New(0)
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, Health: proxy, MinInterval: -1,
			RetryInterval: time.Hour})
		v4, v6 := func() health.Family { return proxy.Family(model.IPv4) },
			func() health.Family { return proxy.Family(model.IPv6) }
		assert.Equal(t, health.Family{Healthy: true}, v4(), "nothing has happened")
		src.Update(set(service("four", "10.96.0.1"))...)
		src.Update(set(service("six", "fd00::1"))...)
		src.Synced()
		synctest.Wait()
		first := time.Now()
		assert.Equal(t, health.Family{LastQueued: first, LastApplied: first, Healthy: true}, v4())
		assert.Equal(t, v4(), v6())

		time.Sleep(time.Minute)
		queued := time.Now()
		rec.FailNext(&sink.FamilyError{Family: model.IPv6, Err: errors.New("down")})
		src.Update(set(slice("four", "10.0.0.1"), slice("six", "fd00:1::1"))...)
		synctest.Wait()
		assert.Equal(t, health.Family{LastQueued: queued, LastApplied: queued, Healthy: true}, v4(), "it is applied")
		assert.Equal(t, health.Family{LastQueued: queued, LastApplied: first, OldestPending: queued, Healthy: true},
			v6(), "it waits")
		ops(rec)
		_, err := rec.NextWave(t.Context()) // the retry
		require.NoError(t, err)
		synctest.Wait()
		assert.True(t, v6().OldestPending.IsZero())
		require.NoError(t, stop())
	})
}

func TestAChangeDuringASyncIsPendingUntilTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, proxy := newManual(), &sink.Recorder{}, health.New(0)
		block := make(chan struct{})
		slow := sink.NewFullState(func(context.Context, *sink.Snapshot) error { <-block; return nil })
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: sink.Tee(rec, slow), Health: proxy,
			MinInterval: time.Minute})
		src.Update(set(service("a", "10.96.0.1"))...)
		src.Synced()
		synctest.Wait()
		time.Sleep(time.Second)
		during := time.Now()
		src.Update(set(service("b", "10.96.0.2"))...)
		time.Sleep(time.Second)
		close(block)
		synctest.Wait()
		assert.Equal(t, during, proxy.Family(model.IPv4).OldestPending)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.True(t, proxy.Family(model.IPv4).OldestPending.IsZero())
		require.NoError(t, stop())
	})
}

func TestMetricsHaveTheNamesAndLabelsOfKubeProxy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, reg := newManual(), &sink.Recorder{}, prometheus.NewPedanticRegistry()
		stop := start(t, kubeproxy.Options{Sink: rec, Metrics: reg, MinInterval: -1,
			Feed: &kubeproxy.LocalFeed{Source: src, State: localstate.Options{NodeName: "node-9"}}})
		svc := service("a", "10.96.0.1")
		svc.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
		time.Sleep(time.Second)
		src.Update(set(svc)...)
		src.Update(set(slice("a", "10.0.0.1"))...)
		expect := func(name, text string) {
			t.Helper()
			require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(text), name))
		}
		expect("kubeproxy_sync_proxy_rules_service_changes_pending", `
			# HELP kubeproxy_sync_proxy_rules_service_changes_pending Services whose Service object changed since the last Sync began
			# TYPE kubeproxy_sync_proxy_rules_service_changes_pending gauge
			kubeproxy_sync_proxy_rules_service_changes_pending 1
		`)
		src.Synced()
		synctest.Wait()
		expect("kubeproxy_sync_proxy_rules_endpoint_changes_total", `
			# HELP kubeproxy_sync_proxy_rules_endpoint_changes_total EndpointSlice objects received that differ from the previous version
			# TYPE kubeproxy_sync_proxy_rules_endpoint_changes_total counter
			kubeproxy_sync_proxy_rules_endpoint_changes_total 1
		`)
		expect("kubeproxy_sync_proxy_rules_service_changes_pending", `
			# HELP kubeproxy_sync_proxy_rules_service_changes_pending Services whose Service object changed since the last Sync began
			# TYPE kubeproxy_sync_proxy_rules_service_changes_pending gauge
			kubeproxy_sync_proxy_rules_service_changes_pending 0
		`)
		expect("kubeproxy_sync_proxy_rules_no_local_endpoints_total", `
			# HELP kubeproxy_sync_proxy_rules_no_local_endpoints_total Service ports with a Local traffic policy and no endpoint on this node
			# TYPE kubeproxy_sync_proxy_rules_no_local_endpoints_total gauge
			kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 0
			kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="internal"} 1
			kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv6",traffic_policy="external"} 0
			kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv6",traffic_policy="internal"} 0
		`)

		names := map[string]int{}
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			names[strings.TrimPrefix(f.GetName(), "kubeproxy_")] = len(f.GetMetric())
		}
		assert.Equal(t, map[string]int{
			"service_ports_failed":              2, // kube-proxy does not have it
			"sync_proxy_rules_duration_seconds": 2, "sync_full_proxy_rules_duration_seconds": 2,
			// no IPv6 change came
			"sync_proxy_rules_last_timestamp_seconds": 2, "sync_proxy_rules_last_queued_timestamp_seconds": 1,
			"sync_proxy_rules_endpoint_changes_pending": 1, "sync_proxy_rules_endpoint_changes_total": 1,
			"sync_proxy_rules_service_changes_pending": 1, "sync_proxy_rules_service_changes_total": 1,
			"sync_proxy_rules_no_local_endpoints_total": 4,
		}, names)
		require.NoError(t, stop())
		families, err = reg.Gather()
		require.NoError(t, err)
		assert.Empty(t, families, "the metrics go with Run")
	})
}

// S19: the latency is observed when the change is applied, even by a retry.
func TestNetworkProgrammingLatencyEndsWithASuccessfulSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, reg := newManual(), &sink.Recorder{}, prometheus.NewPedanticRegistry()
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, Metrics: reg, MinInterval: -1})
		src.Update(set(service("a", "10.96.0.1"))...)
		src.Synced()
		synctest.Wait()

		time.Sleep(time.Minute)
		changed := slice("a", "10.0.0.1")
		changed.Annotations = map[string]string{
			corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano)}
		time.Sleep(2 * time.Second)
		rec.FailNext(errors.New("down"))
		src.Update(set(changed)...)
		synctest.Wait()
		const name = "kubeproxy_network_programming_duration_seconds"
		count, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		assert.Zero(t, count, "the Sync failed")

		time.Sleep(time.Second)
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == name {
				h := f.GetMetric()[0].GetHistogram()
				assert.Equal(t, "IPv4", f.GetMetric()[0].GetLabel()[0].GetValue())
				assert.EqualValues(t, 1, h.GetSampleCount())
				assert.InDelta(t, 2.1, h.GetSampleSum(), 1e-6)
				assert.Len(t, h.GetBucket(), 7+2+59+12+7)
				require.NoError(t, stop())
				return
			}
		}
		t.Fatal("no latency was observed")
	})
}

func TestMetricsThatAreTakenAreReported(t *testing.T) {
	reg := prometheus.NewRegistry()
	taken := prometheus.NewGauge(prometheus.GaugeOpts{Name: "kubeproxy_sync_proxy_rules_service_changes_pending",
		Help: "other"})
	require.NoError(t, reg.Register(taken))
	err := kubeproxy.Run(t.Context(), kubeproxy.Options{Feed: local(newManual()), Sink: &sink.Recorder{}, Metrics: reg})
	require.ErrorContains(t, err, "metrics: ")
	n, err := testutil.GatherAndCount(reg)
	require.NoError(t, err)
	assert.Equal(t, 1, n, "nothing of ours is left")
}

// TestASinkThatFailsAtRandomLosesNothing: what a sink has applied at its last successful Sync is the final state,
// whichever Syncs failed before.
func TestASinkThatFailsAtRandomLosesNothing(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rng, fail := rand.New(rand.NewPCG(seed, 0)), rand.New(rand.NewPCG(seed, 1))
				var applied *sink.Snapshot
				flaky := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
					if fail.IntN(3) > 0 {
						return errors.New("down")
					}
					applied = s
					return nil
				})
				src, rec := newManual(), &sink.Recorder{}
				stop := start(t, kubeproxy.Options{Feed: local(src), Sink: sink.Tee(rec, flaky), MinInterval: time.Second,
					RetryInterval: 2 * time.Second})
				src.Synced()
				for range 200 {
					name := fmt.Sprint("s", rng.IntN(5))
					obj := set(service(name, "10.96.0."+name[1:]+"1"))[0]
					if rng.IntN(2) == 0 {
						obj = set(slice(name, fmt.Sprint("10.0.0.", rng.IntN(9)+1),
							fmt.Sprint("10.0.1.", rng.IntN(9)+1)))[0]
					}
					obj.Deleted = rng.IntN(3) == 0
					src.Update(obj)
					time.Sleep(time.Duration(rng.IntN(1500)) * time.Millisecond)
				}
				time.Sleep(time.Hour)
				require.NoError(t, stop())
				require.NotNil(t, applied)
				services, endpoints := map[model.ServiceName]*model.Service{}, map[model.EndpointKey]*model.Endpoint{}
				for entry := range applied.Services() {
					services[entry.Service.Name] = entry.Service
					for _, e := range entry.Endpoints {
						endpoints[e.Key()] = e
					}
				}
				assert.Equal(t, rec.Services(), services)
				assert.Equal(t, rec.Endpoints(), endpoints)
				assert.Empty(t, rec.Violations())
			})
		})
	}
}
