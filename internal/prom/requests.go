package prom

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Requests are metrics of the requests of a client of the API server, with the names, labels and boundaries that
// Kubernetes' own programs give them. client-go can have one such set in a process, for all clients; this is of the
// clients that [Requests.Wrap] is given to.
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

// Wrap returns a transport that counts its requests and measures the time until a response begins: that of a watch goes
// on for minutes.
func (r *Requests) Wrap(next http.RoundTripper) http.RoundTripper { return &roundTripper{r, next} }

type roundTripper struct {
	metrics *Requests
	next    http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (t *roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	start := time.Now()
	resp, err := t.next.RoundTrip(req)
	code := "<error>" // as client-go says it
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	t.metrics.total.WithLabelValues(code, req.Method, req.URL.Host).Inc()
	t.metrics.duration.WithLabelValues(req.Method, req.URL.Host).Observe(time.Since(start).Seconds())
	return resp, err
}

// WrappedRoundTripper returns the transport below, for those who look for connections.
func (t *roundTripper) WrappedRoundTripper() http.RoundTripper { return t.next }
