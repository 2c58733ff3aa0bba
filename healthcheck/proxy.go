package healthcheck

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// FamilyHealth is what a run knows of one family. It has the fields of the FamilyHealth in this module's root package, so
// that one converts to the other. A zero time means never, or nothing.
type FamilyHealth struct {
	// LastQueued is when the latest change came. It is not looked at.
	LastQueued time.Time
	// OldestPending is when the oldest change came that is not in force yet.
	OldestPending time.Time
	// LastApplied is when a Sync last ended that put the family in force.
	LastApplied time.Time
}

// ProxyOptions configures a [Proxy]. Family is needed.
type ProxyOptions struct {
	// Family returns the health of a family. It is called from many goroutines. From the root package's Health:
	//
	//	func(f model.Family) healthcheck.FamilyHealth { return healthcheck.FamilyHealth(health.Family(f)) }
	Family func(model.Family) FamilyHealth
	// Families are those that count. Default: both.
	Families []model.Family
	// Limit is how long a change may wait for being put in force. Default 60 s: twice kube-proxy's default sync period.
	Limit time.Duration
}

const defaultLimit = 60 * time.Second

// Proxy tells whether the proxy is healthy, and its node eligible for traffic. Its methods may be called from any goroutine.
//
// # Healthy
//
// The proxy is unhealthy if in any family a change has waited for Limit or longer. A family that has never been put in
// force does not count: a proxy that starts is healthy.
//
// # Eligible
//
// The node is eligible unless [model.Node.NotEligible]; before SetNode, too.
//
// # Metrics
//
// Proxy is a prometheus.Collector: register it with your prometheus.Registerer to have
//
//	kubeproxy_proxy_healthz_total{code}
//	kubeproxy_proxy_livez_total{code}
type Proxy struct {
	opts           ProxyOptions
	notEligible    atomic.Bool
	healthz, livez *prometheus.CounterVec
}

var _ sink.NodeSetter = (*Proxy)(nil)

// NewProxy returns a Proxy.
func NewProxy(opts ProxyOptions) *Proxy {
	if opts.Limit <= 0 {
		opts.Limit = defaultLimit
	}
	if opts.Family == nil {
		opts.Family = func(model.Family) FamilyHealth { return FamilyHealth{} }
	}
	counter := func(name, path string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_" + name, Help: "Answers of " + path + " by status code"}, []string{"code"})
	}
	return &Proxy{
		opts:    opts,
		healthz: counter("proxy_healthz_total", "/healthz"),
		livez:   counter("proxy_livez_total", "/livez"),
	}
}

// SetNode takes the node. It implements [sink.NodeSetter]; [Proxy.Sink] is a whole sink.
func (p *Proxy) SetNode(node *model.Node) { p.notEligible.Store(node != nil && node.NotEligible) }

// Sink returns a sink that passes the node on to the Proxy and ignores everything else, to go into a [sink.Tee].
func (p *Proxy) Sink() sink.Sink { return nodeSink{sink.NewForward(nil), p} }

type nodeSink struct {
	*sink.Forward
	proxy *Proxy
}

// SetNode implements [sink.NodeSetter].
func (s nodeSink) SetNode(node *model.Node) { s.proxy.SetNode(node) }

// Healthy tells whether the proxy is healthy, whatever the node is.
func (p *Proxy) Healthy() bool { return p.status(time.Now()).Healthy }

// status is the body of the answers.
type status struct {
	LastUpdated  time.Time               `json:"lastUpdated"`
	CurrentTime  time.Time               `json:"currentTime"`
	NodeEligible *bool                   `json:"nodeEligible,omitempty"`
	Healthy      bool                    `json:"healthy"`
	Status       map[string]familyStatus `json:"status,omitempty"`
}

type familyStatus struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// status is that of the proxy alone, without the node.
func (p *Proxy) status(now time.Time) status {
	s := status{CurrentTime: now, Healthy: true, Status: map[string]familyStatus{}}
	for _, f := range model.Families() {
		if len(p.opts.Families) > 0 && !slices.Contains(p.opts.Families, f) {
			continue
		}
		h := p.opts.Family(f)
		if h.LastApplied.IsZero() {
			continue
		}
		healthy := h.OldestPending.IsZero() || now.Sub(h.OldestPending) < p.opts.Limit
		s.Status[f.String()] = familyStatus{LastUpdated: h.LastApplied, Healthy: healthy}
		s.Healthy = s.Healthy && healthy
		if h.LastApplied.After(s.LastUpdated) {
			s.LastUpdated = h.LastApplied
		}
	}
	return s
}

// Healthz returns the handler of /healthz: 200 if the proxy is healthy and the node eligible, otherwise 503. The body is a
// JSON object with lastUpdated, currentTime, nodeEligible, healthy (the proxy alone) and status, by family. lastUpdated is
// now where the answer is 200, which is what clients came to expect, and otherwise when something was last put in force.
func (p *Proxy) Healthz() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := p.status(time.Now())
		eligible := !p.notEligible.Load()
		s.NodeEligible = &eligible
		s.answer(w, s.Healthy && eligible, p.healthz)
	})
}

// Livez returns the handler of /livez: 200 if the proxy is healthy, otherwise 503. The body is that of Healthz without
// nodeEligible.
func (p *Proxy) Livez() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s := p.status(time.Now())
		s.answer(w, s.Healthy, p.livez)
	})
}

func (s status) answer(w http.ResponseWriter, ok bool, total *prometheus.CounterVec) {
	code := http.StatusServiceUnavailable
	if ok {
		code = http.StatusOK
		s.LastUpdated = s.CurrentTime
	}
	total.WithLabelValues(strconv.Itoa(code)).Inc()
	body, _ := json.Marshal(s) // no value of the type fails
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client is gone: nobody to tell
}

// Describe implements [prometheus.Collector].
func (p *Proxy) Describe(ch chan<- *prometheus.Desc) {
	p.healthz.Describe(ch)
	p.livez.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (p *Proxy) Collect(ch chan<- prometheus.Metric) {
	p.healthz.Collect(ch)
	p.livez.Collect(ch)
}
