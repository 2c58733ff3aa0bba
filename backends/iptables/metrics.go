package iptables

import (
	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's in this mode, with its names and labels.
type metrics struct {
	shared.Group
	total, last               *prometheus.GaugeVec
	failures, partialFailures *prometheus.CounterVec
}

func newMetrics(families []model.Family) *metrics {
	const prefix = "kubeproxy_sync_proxy_rules_iptables_"
	gauge := func(name, help string) *prometheus.GaugeVec {
		o := prometheus.GaugeOpts{Name: prefix + name, Help: help}
		return prometheus.NewGaugeVec(o, []string{"table", "ip_family"})
	}
	m := &metrics{
		total:    gauge("total", "Rules of the proxy in the table"),
		last:     gauge("last", "Rules that the last Sync or repair wrote to the table"),
		failures: shared.Counter(families, prefix+"restore_failures_total", "Runs of iptables-restore that failed"),
		partialFailures: shared.Counter(families, prefix+"partial_restore_failures_total",
			"Runs of iptables-restore for changes alone that failed: a full comparison follows"),
	}
	m.Metrics = []prometheus.Collector{m.total, m.last, m.failures, m.partialFailures}
	return m
}

func (m *metrics) written(family model.Family, b *dp.Batch) {
	for _, t := range b.Tables {
		rules := len(t.Insert)
		for _, c := range t.Chains {
			rules += len(c.Rules)
		}
		m.last.WithLabelValues(string(t.Table), family.String()).Set(float64(rules))
	}
}

func (m *metrics) applied(family model.Family, table dp.Table, rules int) {
	m.total.WithLabelValues(string(table), family.String()).Set(float64(rules))
}

// failed notes a restore that has failed; partial if it was one of changes alone.
func (m *metrics) failed(family model.Family, partial bool) {
	m.failures.WithLabelValues(family.String()).Inc()
	if partial {
		m.partialFailures.WithLabelValues(family.String()).Inc()
	}
}
