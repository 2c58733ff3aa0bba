package userspace

import (
	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's for node ports on loopback addresses, with its names and labels. Only [NewLoopback] registers
// them.
type metrics struct {
	shared.Group
	listeners *prometheus.GaugeVec
	failures  *prometheus.CounterVec
}

func newMetrics(families []model.Family) *metrics {
	const prefix = "kubeproxy_nftables_localhost_nodeport_"
	m := &metrics{
		listeners: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + "listeners",
			Help: "Listening sockets for node ports on loopback addresses"}, []string{"ip_family"}),
		failures: shared.Counter(families, prefix+"listener_creation_failures_total",
			"Failed attempts to open a listening socket for a node port on a loopback address"),
	}
	for _, f := range families {
		m.listening(f, 0)
	}
	m.Metrics = []prometheus.Collector{m.listeners, m.failures}
	return m
}

// listening notes how many listeners a family has.
func (m *metrics) listening(f model.Family, n int) {
	m.listeners.WithLabelValues(f.String()).Set(float64(n))
}

// failed notes that a listener could not be opened.
func (m *metrics) failed(f model.Family) { m.failures.WithLabelValues(f.String()).Inc() }
