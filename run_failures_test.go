package kubeproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A change a second for five minutes, with one family broken: work in proportion to the cluster happens only as often
// as the log announced, and only for the broken family.
func TestAPartialFailureLeavesChangesIncremental(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex // guards what the callback shares with the test
		full := map[model.Family]int{}
		calls := 0
		broken := true
		backend := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
			mu.Lock()
			defer mu.Unlock()
			calls++
			for _, f := range model.Families() {
				if s.FullResyncOf(f) && s.RetryDue() {
					full[f]++
				}
			}
			if broken {
				return &sink.FamilyError{Family: model.IPv6, Err: errors.New("broken")}
			}
			return nil
		})
		src, other := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: sink.Tee(other, backend), MinInterval: -1,
			ResyncInterval: -1})
		src.Synced()
		synctest.Wait()
		time.Sleep(50 * time.Millisecond) // so that no change comes together with a retry
		for i := range 300 {
			src.Update(set(service("a", fmt.Sprint("10.96.", i/100, ".", i%100+1)))...)
			time.Sleep(time.Second)
			synctest.Wait()
		}
		mu.Lock()
		assert.GreaterOrEqual(t, calls, 300, "every change was handed over")
		assert.Equal(t, 1, full[model.IPv4], "the first Sync")
		// After 0.1 s, 0.2 s ... 25.6 s, and then every 30 s.
		assert.Equal(t, 1+9+8, full[model.IPv6])
		assert.NotContains(t, fmt.Sprint(ops(other)), "Resync", "the other sink of the Tee is well")
		broken = false
		mu.Unlock()
		time.Sleep(time.Minute)
		require.NoError(t, stop())
		assert.Equal(t, 1+9+9, full[model.IPv6])
	})
}

// A sink that can only be resynced as a whole is resynced when announced, not at every change.
func TestASinkWithoutResyncFailedIsForcedAtTheRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: onlyForced{rec}, MinInterval: -1, ResyncInterval: -1})
		src.Synced()
		synctest.Wait()
		ops(rec)
		down := errors.New("down")
		rec.FailNext(down, down, down, down, down, down)
		for i := range 5 {
			src.Update(set(service("a", fmt.Sprint("10.96.0.", i+1)))...)
			time.Sleep(75 * time.Millisecond)
			synctest.Wait()
		}
		assert.Equal(t, []string{"SetService", "SetService", "ForceResync", "SetService", "SetService", "ForceResync",
			"SetService"},
			ops(rec), "after 0.1 s, and after 0.2 s more")
		require.NoError(t, stop())
	})
}

// onlyForced is a sink without ResyncFailed.
type onlyForced struct{ rec *sink.Recorder }

func (o onlyForced) SetService(s *model.Service)        { o.rec.SetService(s) }
func (o onlyForced) DeleteService(n model.ServiceName)  { o.rec.DeleteService(n) }
func (o onlyForced) SetEndpoint(e *model.Endpoint)      { o.rec.SetEndpoint(e) }
func (o onlyForced) DeleteEndpoint(k model.EndpointKey) { o.rec.DeleteEndpoint(k) }
func (o onlyForced) ForceResync()                       { o.rec.ForceResync() }
func (o onlyForced) Sync(ctx context.Context) error     { return o.rec.Sync(ctx) }

// transcript is written by one goroutine and taken by another.
type transcript struct {
	mu   sync.Mutex
	list []string
}

func (l *transcript) add(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, text)
}

func (l *transcript) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.list
	l.list = nil
	return list
}

// A Sync that applied everything but a service port counts as successful, except for that port.
func TestAServicePortThatFailsDoesNotAffectOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines, events := &transcript{}, &transcript{}
		logger := funcr.New(func(_, args string) { lines.add(args) }, funcr.Options{})
		taken := lines.take
		src, rec, proxy := newManual(), &sink.Recorder{}, health.New(0)
		reg := prometheus.NewPedanticRegistry()
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		result := make(chan error, 1)
		go func() {
			result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: local(src), Sink: rec, Health: proxy, Metrics: reg,
				MinInterval:    time.Second,
				ResyncInterval: -1,
				OnPortError:    func(e *sink.PortError) { events.add(e.Error()) }})
		}()
		<-src.started
		port := model.PortName{Service: model.ServiceName{Namespace: "default", Name: "a"},
			Port: "http", Protocol: model.TCP}
		refused := func(reason string) error {
			return errors.Join(&sink.PortError{Port: port, Family: model.IPv4, Err: errors.New(reason)})
		}
		rec.FailNext(refused("no match"), refused("no match"), refused("no match"))
		src.Update(set(service("a", "10.96.0.1"))...)
		src.Synced()
		synctest.Wait()
		began := time.Now()
		assert.Equal(t, health.Family{LastQueued: began, LastApplied: began, Healthy: true}, proxy.Family(model.IPv4),
			"it is applied")
		count, err := testutil.GatherAndCount(reg, "kubeproxy_sync_proxy_rules_last_timestamp_seconds")
		require.NoError(t, err)
		assert.Equal(t, 2, count)
		failed := func(n int) {
			t.Helper()
			require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(fmt.Sprintf(
				`# HELP kubeproxy_service_ports_failed Service ports of which the dataplane refused a part in the last Sync
# TYPE kubeproxy_service_ports_failed gauge
kubeproxy_service_ports_failed{ip_family="IPv4"} %d
kubeproxy_service_ports_failed{ip_family="IPv6"} 0
`, n)), "kubeproxy_service_ports_failed"))
		}
		failed(1)
		assert.Len(t, ops(rec), 1)
		const known = `"msg"="A service port could not be applied, but everything else was; trying again" ` +
			`"error"="no match" "servicePort"="default/a:http/TCP" "family"="IPv4" "retryIn"="1s"`
		assert.Equal(t, []string{known, firstSyncButOne}, taken())
		assert.Equal(t, []string{"service port default/a:http/TCP (IPv4): no match"}, events.take())

		time.Sleep(3 * time.Second)
		synctest.Wait()
		assert.Equal(t, []string{"ResyncFailed", "ResyncFailed"}, ops(rec), "after 1 s, and after 2 s more")
		assert.Empty(t, taken(), "it is known")
		assert.Empty(t, events.take())

		rec.FailNext(refused("no memory"), errors.Join(&sink.FamilyError{Family: model.IPv4, Err: errors.New("down")}),
			refused("no memory"))
		time.Sleep(4 * time.Second)
		synctest.Wait()
		assert.Len(t, taken(), 1, "another error")
		assert.Len(t, events.take(), 1)
		time.Sleep(8 * time.Second)
		synctest.Wait()
		assert.Len(t, taken(), 1, "the family failed; nothing is known of the service port")
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Empty(t, taken(), "it is as it was before")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{`"level"=0 "msg"="A service port is applied again, or was removed" ` +
			`"servicePort"="default/a:http/TCP" "family"="IPv4"`}, taken())
		failed(0)
		assert.Empty(t, events.take())
		ops(rec)
		time.Sleep(time.Hour)
		assert.Empty(t, ops(rec), "nothing is left to be tried")
		assert.Empty(t, rec.Violations())
		cancel()
		require.NoError(t, <-result)
	})
}

// firstSyncButOne is logged after the first Sync if one service port was refused.
const firstSyncButOne = `"level"=0 "msg"="Everything is applied for the first time, except some service ports" ` +
	`"failedServicePorts"=1 "duration"="0s"`

// A service port that stays refused does not keep the proxy from being ready; a family that failed does.
func TestAProxyWithARefusedServicePortIsReady(t *testing.T) {
	port := model.PortName{Service: model.ServiceName{Namespace: "default", Name: "a"}, Port: "http", Protocol: model.TCP}
	refused := &sink.PortError{Port: port, Family: model.IPv4, Err: errors.New("no match")}
	v6 := &sink.FamilyError{Family: model.IPv6, Err: errors.New("down")}
	for name, c := range map[string]struct {
		errs  []error // of the Syncs, one second apart
		after time.Duration
		line  string
	}{
		"a port is refused": {[]error{refused, refused}, 0, firstSyncButOne},
		"a family failed, and a port is refused": {[]error{errors.Join(v6, refused), v6, refused}, 3 * time.Second,
			firstSyncButOne},
		"a family failed": {[]error{v6}, time.Second, firstSync},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lines := &transcript{}
				logger := funcr.New(func(_, args string) { lines.add(args) }, funcr.Options{})
				src, rec := newManual(), &sink.Recorder{}
				rec.FailNext(c.errs...)
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
				result, ready := make(chan error, 1), make(chan time.Time, 2)
				go func() {
					result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: time.Second,
						ResyncInterval: -1, OnReady: func() { ready <- time.Now() }})
				}()
				<-src.started
				began := time.Now()
				src.Synced()
				time.Sleep(time.Hour)
				cancel()
				require.NoError(t, <-result)
				require.Len(t, ready, 1, "once")
				assert.Equal(t, c.after, (<-ready).Sub(began))
				assert.Equal(t, 1, strings.Count(strings.Join(lines.take(), "\n"), c.line))
			})
		})
	}
}

// Load balancers use the node once each family that the feed serves has been applied.
func TestANodeIsNotReadyBeforeEachFamilyIsApplied(t *testing.T) {
	for name, c := range map[string]struct {
		families []model.Family
		want     int
	}{
		"dual-stack": {model.Families(), http.StatusServiceUnavailable},
		"IPv4 alone": {[]model.Family{model.IPv4}, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, rec, proxy := newManual(), &sink.Recorder{}, health.New(0)
				rec.FailNext(&sink.FamilyError{Family: model.IPv6, Err: errors.New("down")})
				feed := &kubeproxy.LocalFeed{Source: src, State: localstate.Options{Families: c.families}}
				stop := start(t, kubeproxy.Options{Feed: feed, Sink: rec, Health: proxy, MinInterval: -1})
				healthz := func() int {
					w := httptest.NewRecorder()
					proxy.Healthz().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
					return w.Code
				}
				assert.Equal(t, http.StatusServiceUnavailable, healthz(), "nothing is applied")
				src.Synced()
				synctest.Wait()
				assert.Equal(t, c.want, healthz(), "IPv6 failed")
				time.Sleep(time.Minute)
				synctest.Wait()
				assert.Equal(t, http.StatusOK, healthz(), "both are applied")
				require.NoError(t, stop())
			})
		})
	}
}

// Two backends in one Tee refuse the same service port, each for its own reason.
func TestAServicePortThatFailsTwiceIsLoggedOnceForEachReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lines := &transcript{}
		logger := funcr.New(func(_, args string) { lines.add(args) }, funcr.Options{})
		src, sinks := newManual(), []*sink.Recorder{{}, {}}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		result := make(chan error, 1)
		go func() {
			result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: local(src), Sink: sink.Tee(sinks[0], sinks[1]),
				MinInterval:    time.Second,
				ResyncInterval: -1})
		}()
		<-src.started
		port := model.PortName{Service: model.ServiceName{Namespace: "default", Name: "a"},
			Port: "http", Protocol: model.TCP}
		for i, reason := range []string{"no match", "address already in use"} {
			err := &sink.PortError{Port: port, Family: model.IPv4, Err: errors.New(reason)}
			sinks[i].FailNext(err, err, err)
		}
		src.Update(set(service("a", "10.96.0.1"))...)
		src.Synced()
		synctest.Wait()
		logged := lines.take()
		require.Len(t, logged, 3)
		assert.Contains(t, logged[0], "no match")
		assert.Contains(t, logged[1], "address already in use")
		assert.Equal(t, firstSyncButOne, logged[2], "it is one service port")
		time.Sleep(4 * time.Second) // two more attempts
		synctest.Wait()
		assert.Empty(t, lines.take(), "they are known")
		cancel()
		require.NoError(t, <-result)
	})
}
