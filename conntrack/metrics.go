package conntrack

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's, with the same names and labels.
type metrics struct {
	duration *prometheus.HistogramVec
	deleted  *prometheus.CounterVec
}

func newMetrics() metrics {
	return metrics{
		duration: prom.NewHistogram("kubeproxy_conntrack_reconciler_sync_duration_seconds",
			"Duration of a pass over the conntrack table in seconds", prom.Work()),
		deleted: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_conntrack_reconciler_deleted_entries_total",
			Help: "Stale flows deleted from the conntrack table",
		}, []string{"ip_family"}),
	}
}

// passed records a pass. A failed pass may have deleted flows too.
func (m *metrics) passed(family model.Family, deleted int, took time.Duration, err error) {
	m.deleted.WithLabelValues(family.String()).Add(float64(deleted))
	if err == nil {
		m.duration.WithLabelValues(family.String()).Observe(took.Seconds())
	}
}

// Describe implements [prometheus.Collector].
func (r *Reconciler) Describe(ch chan<- *prometheus.Desc) {
	r.metrics.duration.Describe(ch)
	r.metrics.deleted.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (r *Reconciler) Collect(ch chan<- prometheus.Metric) {
	r.metrics.duration.Collect(ch)
	r.metrics.deleted.Collect(ch)
}
