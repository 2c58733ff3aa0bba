package nft

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are kube-proxy's in this mode, with its names and labels.
type metrics struct {
	syncFailures, cleanUpFailures *prometheus.CounterVec
}

func newMetrics(families []*family) *metrics {
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubeproxy_sync_proxy_rules_nftables_" + name, Help: help}, []string{"ip_family"})
		for _, f := range families {
			c.WithLabelValues(f.key.Family.String())
		}
		return c
	}
	return &metrics{
		syncFailures:    counter("sync_failures_total", "Attempts to put changes, or everything, in force that failed"),
		cleanUpFailures: counter("cleanup_failures_total", "Attempts to remove what is no longer needed that failed"),
	}
}

// register registers the metrics, and returns what takes them away again.
func (m *metrics) register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	if err := r.Register(m); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return func() { r.Unregister(m) }, nil
}

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	m.syncFailures.Describe(ch)
	m.cleanUpFailures.Describe(ch)
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.syncFailures.Collect(ch)
	m.cleanUpFailures.Collect(ch)
}
