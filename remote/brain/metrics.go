package brain

import (
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/internal/watchhealth"
)

// serverMetrics are the metrics of a server: see the package documentation.
type serverMetrics struct {
	batches                *prometheus.CounterVec
	diff                   prometheus.Counter // of batches
	sentBytes, applyErrors prometheus.Counter
	refused                *prometheus.CounterVec
	publish, delivery      prometheus.Histogram
	lists                  watchhealth.Lists
}

const metricPrefix = "kubeproxy_remote_"

func newServerMetrics() *serverMetrics {
	m := &serverMetrics{
		batches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: metricPrefix + "batches_total", Help: "Batches sent to clients, by kind"},
			[]string{"kind"}),
		sentBytes: prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + "sent_bytes_total",
			Help: "Bytes of batches sent"}),
		applyErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: metricPrefix + "apply_errors_total",
			Help: "Times a client started to report an error"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: metricPrefix + "refused_total",
			Help: "Clients and connections that were not admitted, by reason"}, []string{"reason"}),
		publish: prom.NewOneHistogram(metricPrefix+"publish_duration_seconds",
			"How long it took to work out a revision, and to send it to those that waited for it", prom.Work()),
		delivery: prom.NewOneHistogram(metricPrefix+"delivery_duration_seconds",
			"From a change that the server saw to a client's acknowledgement that it is applied", prom.Latency()),
		lists: watchhealth.NewLists(metricPrefix),
	}
	m.diff = m.batches.WithLabelValues("diff")
	return m
}

// refuse counts a client that is not admitted, and returns the error that ends its stream.
func (m *serverMetrics) refuse(reason string, code codes.Code, why error) error {
	m.refused.WithLabelValues(reason).Inc()
	return status.Error(code, why.Error())
}
