package health

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func ask(t *testing.T, h http.Handler) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
	return w.Code, w.Body.String()
}

func TestHealthOfTheProxy(t *testing.T) {
	// In the tests' own time now is 2000-01-01T00:00:00Z.
	ago := func(d time.Duration) time.Time { return time.Now().Add(-d).UTC() }
	type times struct{ applied, pending time.Time }
	type health struct{ v4, v6 times }
	for _, test := range []struct {
		name           string
		health         func() health
		notEligible    bool
		healthz, livez int
		body           string // of healthz
	}{
		{
			name: "everything is applied",
			health: func() health {
				return health{times{applied: ago(time.Hour)}, times{applied: ago(time.Minute)}}
			},
			healthz: 200, livez: 200,
			body: `{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":true,` +
				`"status":{"IPv4":{"lastUpdated":"1999-12-31T23:00:00Z","healthy":true},"IPv6":{"lastUpdated":"1999-12-31T23:59:00Z","healthy":true}}}`,
		}, {
			name: "nothing has been applied yet",
			health: func() health {
				return health{times{pending: ago(time.Hour)}, times{pending: ago(time.Hour)}}
			},
			healthz: 503, livez: 200,
			body: `{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":true}`,
		}, {
			name: "a change waits, not for long",
			health: func() health {
				return health{times{applied: ago(time.Hour), pending: ago(60*time.Second - 1)}, times{}}
			},
			healthz: 200, livez: 200,
			body: `{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":true,` +
				`"status":{"IPv4":{"lastUpdated":"1999-12-31T23:00:00Z","healthy":true}}}`,
		}, {
			name: "a change waits too long in one family",
			health: func() health {
				return health{times{applied: ago(time.Minute)},
					times{applied: ago(time.Hour), pending: ago(60 * time.Second)}}
			},
			healthz: 503, livez: 503,
			body: `{"lastUpdated":"1999-12-31T23:59:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":false,` +
				`"status":{"IPv4":{"lastUpdated":"1999-12-31T23:59:00Z","healthy":true},"IPv6":{"lastUpdated":"1999-12-31T23:00:00Z","healthy":false}}}`,
		}, {
			name: "the node is not eligible",
			health: func() health {
				return health{times{applied: ago(time.Minute)}, times{}}
			},
			notEligible: true,
			healthz:     503, livez: 200,
			body: `{"lastUpdated":"1999-12-31T23:59:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":false,"healthy":true,` +
				`"status":{"IPv4":{"lastUpdated":"1999-12-31T23:59:00Z","healthy":true}}}`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := test.health()
				p := New(0)
				note := func(f model.Family, h times) {
					if !h.applied.IsZero() {
						p.Applied(f, h.applied)
					}
					if !h.pending.IsZero() {
						p.Queued(f, h.pending)
					}
				}
				note(model.IPv4, h.v4)
				note(model.IPv6, h.v6)
				if test.notEligible {
					p.SetNode(&model.Node{Name: "n", NotEligible: true})
				}
				code, body := ask(t, p.Healthz())
				require.Equal(t, test.healthz, code)
				require.Equal(t, test.body, strings.ReplaceAll(body, "+00:00", "Z"))
				code, body = ask(t, p.Livez())
				require.Equal(t, test.livez, code)
				require.NotContains(t, body, "nodeEligible")
				require.Equal(t, test.livez == 200, p.Healthy())
				wantUpdated := `{"lastUpdated":"1999-12-31T23:59:00Z"`
				if test.livez == 200 {
					wantUpdated = `{"lastUpdated":"2000-01-01T00:00:00Z"`
				}
				require.True(t, strings.HasPrefix(body, wantUpdated), body)
			})
		})
	}
}

func TestTheLimitCanBeChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := time.Now().Add(-10 * time.Second)
		healthy := func(limit time.Duration) bool {
			p := New(limit)
			p.Applied(model.IPv4, old)
			p.Applied(model.IPv6, old)
			p.Queued(model.IPv6, old)
			return p.Healthy()
		}
		require.False(t, healthy(10*time.Second))
		require.True(t, healthy(11*time.Second))
		require.True(t, New(0).Healthy())
	})
}

// A family that has never been applied gets no traffic from load balancers. Restarting the proxy would not help.
func TestEveryServedFamilyMustHaveBeenApplied(t *testing.T) {
	v4, v6 := []model.Family{model.IPv4}, []model.Family{model.IPv6}
	for name, c := range map[string]struct {
		served, applied []model.Family
		want            int
	}{
		"both are served, neither is applied":   {model.Families(), nil, 503},
		"both are served, IPv4 is applied":      {model.Families(), v4, 503},
		"both are served, IPv6 is applied":      {model.Families(), v6, 503},
		"both are served, both are applied":     {model.Families(), model.Families(), 200},
		"one is served, and applied":            {v6, v6, 200},
		"one is served, the other is applied":   {v6, v4, 503},
		"it is not known, neither is applied":   {nil, nil, 503},
		"it is not known which, one is applied": {nil, v6, 200},
	} {
		t.Run(name, func(t *testing.T) {
			p := New(0)
			p.SetFamilies(c.served)
			for _, f := range c.applied {
				p.Applied(f, time.Now())
			}
			code, _ := ask(t, p.Healthz())
			require.Equal(t, c.want, code)
			code, _ = ask(t, p.Livez())
			require.Equal(t, 200, code)
			require.True(t, p.Healthy())
		})
	}
}

// The handlers, Healthy and Family give the same answer.
func TestAllAnswersAreTheSame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(10 * time.Second)
		check := func(want bool, why string) {
			t.Helper()
			code, _ := ask(t, p.Livez())
			require.Equal(t, []bool{want, want, want}, []bool{p.Healthy(), p.Family(model.IPv4).Healthy, code == 200},
				why)
			require.True(t, p.Family(model.IPv6).Healthy)
		}
		p.Queued(model.IPv4, time.Now())
		time.Sleep(time.Hour)
		check(true, "before the first Sync")
		p.Flushed(model.IPv4)
		p.Applied(model.IPv4, time.Now())
		check(true, "applied")
		p.Queued(model.IPv4, time.Now())
		time.Sleep(10*time.Second - 1)
		check(true, "just before the limit")
		p.Flushed(model.IPv4)
		time.Sleep(time.Nanosecond)
		check(false, "at the limit")
		p.Queued(model.IPv4, time.Now())
		p.Unchanged(model.IPv4)
		check(true, "the older change made no difference")
	})
}

func TestWhileTheNodeHasNoPodCIDRsItIsNotEligible(t *testing.T) {
	p := New(0)
	for _, phase := range []Phase{Listing, AwaitingNodeCIDR, Serving} {
		p.SetPhase(phase)
		code, body := ask(t, p.Healthz())
		require.Equal(t, 503, code, phase)
		require.Equal(t, phase == AwaitingNodeCIDR,
			strings.Contains(body, `"nodeEligible":false,"awaitingNodeCIDR":true,"healthy":true`), body)
		code, _ = ask(t, p.Livez())
		require.Equal(t, 200, code, "a restart would not help")
		require.Equal(t, phase, p.Phase())
	}
	p.Applied(model.IPv4, time.Now())
	code, _ := ask(t, p.Healthz())
	require.Equal(t, 200, code)
	require.Equal(t, "awaiting the node's podCIDRs", AwaitingNodeCIDR.String())
}

// A node without a server goes on serving its state. It is neither restarted for that, nor does it lose traffic.
func TestTheAnswersSaySinceWhenThereIsNoServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(0)
		p.Applied(model.IPv4, time.Now())
		times := func(lost, restored int) {
			require.NoError(t, testutil.CollectAndCompare(p, strings.NewReader(fmt.Sprintf(`
# HELP kubeproxy_disconnected_since_timestamp_seconds Since when nothing comes from the API server or the brain; 0: something does
# TYPE kubeproxy_disconnected_since_timestamp_seconds gauge
kubeproxy_disconnected_since_timestamp_seconds %d
# HELP kubeproxy_restored_state_timestamp_seconds The time of the state in use if it comes from a file; 0: it does not
# TYPE kubeproxy_restored_state_timestamp_seconds gauge
kubeproxy_restored_state_timestamp_seconds %d
`, lost, restored)), "kubeproxy_disconnected_since_timestamp_seconds", "kubeproxy_restored_state_timestamp_seconds"))
		}
		times(0, 0)
		p.SetDisconnected(time.Now())
		p.SetRestored(time.Now().Add(-time.Hour))
		times(946684800, 946681200)
		for _, h := range []http.Handler{p.Healthz(), p.Livez()} {
			code, body := ask(t, h)
			require.Equal(t, 200, code)
			require.Contains(t, strings.ReplaceAll(body, "+00:00", "Z"),
				`"disconnectedSince":"2000-01-01T00:00:00Z","restoredStateFrom":"1999-12-31T23:00:00Z"`)
		}
		p.SetDisconnected(time.Time{})
		p.SetRestored(time.Time{})
		_, body := ask(t, p.Healthz())
		require.NotContains(t, body, "disconnected")
		require.NotContains(t, body, "restored")
		require.NotContains(t, body, "wentBack")
		p.SetWentBack(time.Now())
		code, body := ask(t, p.Healthz())
		require.Equal(t, 200, code)
		require.Contains(t, strings.ReplaceAll(body, "+00:00", "Z"), `"wentBack":"2000-01-01T00:00:00Z"`)
	})
}

func TestTheNodeComesThroughTheSink(t *testing.T) {
	p := New(0)
	p.Applied(model.IPv4, time.Now())
	s := sink.Tee(p.Sink())
	s.SetNode(&model.Node{Name: "n", NotEligible: true})
	s.SetService(&model.Service{})
	require.NoError(t, s.Sync(t.Context()))
	code, _ := ask(t, p.Healthz())
	require.Equal(t, 503, code)
	s.SetNode(&model.Node{Name: "n"})
	code, _ = ask(t, p.Healthz())
	require.Equal(t, 200, code)
	p.SetNode(nil)
	code, _ = ask(t, p.Healthz())
	require.Equal(t, 200, code)
}

func TestMetricsCountTheAnswersByCode(t *testing.T) {
	p := New(0)
	p.Applied(model.IPv4, time.Now())
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(p))
	ask(t, p.Livez())
	ask(t, p.Healthz())
	ask(t, p.Healthz())
	p.SetNode(&model.Node{NotEligible: true})
	ask(t, p.Healthz())
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kubeproxy_proxy_healthz_total Answers of /healthz by status code
# TYPE kubeproxy_proxy_healthz_total counter
kubeproxy_proxy_healthz_total{code="200"} 2
kubeproxy_proxy_healthz_total{code="503"} 1
# HELP kubeproxy_proxy_livez_total Answers of /livez by status code
# TYPE kubeproxy_proxy_livez_total counter
kubeproxy_proxy_livez_total{code="200"} 1
`), "kubeproxy_proxy_healthz_total", "kubeproxy_proxy_livez_total"))
}
