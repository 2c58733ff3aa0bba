package prom

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests are metrics of the requests of a client of the API server, with the names, labels and boundaries that
// Kubernetes' own programs give them. client-go supports one such set in a process, for all clients; this one covers
// only the transports that [Requests.Wrap] returns.
type Requests struct {
	Group
	total    *prometheus.CounterVec
	duration *prometheus.HistogramVec
}

// NewRequests returns metrics that are not registered yet.
func NewRequests() *Requests {
	r := &Requests{
		total: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rest_client_requests_total",
			Help: "Number of HTTP requests, partitioned by status code, method, and host."},
			[]string{"code", "method", "host"}),
		duration: prometheus.NewHistogramVec(options("rest_client_request_duration_seconds",
			"Request latency in seconds. Broken down by verb, and host.",
			[]float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}), []string{"verb", "host"}),
	}
	r.Metrics = []prometheus.Collector{r.total, r.duration}
	return r
}

// Wrap returns a transport that counts its requests and measures the time until a response begins, not until it ends:
// that of a watch lasts minutes.
func (r *Requests) Wrap(next http.RoundTripper) http.RoundTripper { return &roundTripper{r, next} }

type roundTripper struct {
	metrics *Requests
	next    http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (t *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	start := time.Now()
	resp, err := t.next.RoundTrip(req)
	code := "<error>" // as in client-go's metrics
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	t.metrics.total.WithLabelValues(code, req.Method, req.URL.Host).Inc()
	t.metrics.duration.WithLabelValues(req.Method, req.URL.Host).Observe(time.Since(start).Seconds())
	return resp, err
}

// WrappedRoundTripper returns the wrapped transport, for code that has to reach its connections.
func (t *roundTripper) WrappedRoundTripper() http.RoundTripper { return t.next }
