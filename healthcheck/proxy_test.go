package healthcheck

import (
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
	never := time.Time{}
	type health struct{ v4, v6 FamilyHealth }
	for _, test := range []struct {
		name           string
		health         func() health
		notEligible    bool
		healthz, livez int
		body           string // of healthz
	}{
		{
			name: "everything is in force",
			health: func() health {
				return health{FamilyHealth{LastApplied: ago(time.Hour)}, FamilyHealth{LastApplied: ago(time.Minute)}}
			},
			healthz: 200, livez: 200,
			body: `{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":true,` +
				`"status":{"IPv4":{"lastUpdated":"1999-12-31T23:00:00Z","healthy":true},"IPv6":{"lastUpdated":"1999-12-31T23:59:00Z","healthy":true}}}`,
		}, {
			name: "nothing has been put in force yet",
			health: func() health {
				return health{FamilyHealth{OldestPending: ago(time.Hour)}, FamilyHealth{OldestPending: ago(time.Hour)}}
			},
			healthz: 200, livez: 200,
			body: `{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":true}`,
		}, {
			name: "a change waits, not for long",
			health: func() health {
				return health{FamilyHealth{LastApplied: ago(time.Hour), OldestPending: ago(60*time.Second - 1)}, FamilyHealth{}}
			},
			healthz: 200, livez: 200,
			body: `{"lastUpdated":"2000-01-01T00:00:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":true,` +
				`"status":{"IPv4":{"lastUpdated":"1999-12-31T23:00:00Z","healthy":true}}}`,
		}, {
			name: "a change waits too long in one family",
			health: func() health {
				return health{FamilyHealth{LastApplied: ago(time.Minute)}, FamilyHealth{LastApplied: ago(time.Hour), OldestPending: ago(60 * time.Second)}}
			},
			healthz: 503, livez: 503,
			body: `{"lastUpdated":"1999-12-31T23:59:00Z","currentTime":"2000-01-01T00:00:00Z","nodeEligible":true,"healthy":false,` +
				`"status":{"IPv4":{"lastUpdated":"1999-12-31T23:59:00Z","healthy":true},"IPv6":{"lastUpdated":"1999-12-31T23:00:00Z","healthy":false}}}`,
		}, {
			name: "the node is not eligible",
			health: func() health {
				return health{FamilyHealth{LastApplied: ago(time.Minute)}, FamilyHealth{LastApplied: never}}
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
				p := NewProxy(ProxyOptions{Family: func(f model.Family) FamilyHealth {
					if f == model.IPv6 {
						return h.v6
					}
					return h.v4
				}})
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

func TestOnlyTheFamiliesThatAreAskedForCountAndTheLimitIsAnOption(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := time.Now().Add(-10 * time.Second)
		family := func(f model.Family) FamilyHealth {
			if f == model.IPv6 {
				return FamilyHealth{LastApplied: old, OldestPending: old}
			}
			return FamilyHealth{LastApplied: old}
		}
		require.False(t, NewProxy(ProxyOptions{Family: family, Limit: 10 * time.Second}).Healthy())
		require.True(t, NewProxy(ProxyOptions{Family: family, Limit: 11 * time.Second}).Healthy())
		require.True(t, NewProxy(ProxyOptions{Family: family, Limit: time.Second, Families: []model.Family{model.IPv4}}).Healthy())
		require.True(t, NewProxy(ProxyOptions{}).Healthy())
	})
}

func TestTheNodeComesThroughTheSink(t *testing.T) {
	p := NewProxy(ProxyOptions{})
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
	p := NewProxy(ProxyOptions{})
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
`)))
}
