package iptables

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's in this mode, with its names and labels.
type metrics struct {
	total, last               *prometheus.GaugeVec
	failures, partialFailures *prometheus.CounterVec
}

func newMetrics(families []*family) *metrics {
	const prefix = "kubeproxy_sync_proxy_rules_iptables_"
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, []string{"table", "ip_family"})
	}
	counter := func(name, help string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"ip_family"})
		for _, f := range families {
			c.WithLabelValues(f.features.Family.String())
		}
		return c
	}
	return &metrics{
		total:           gauge("total", "Rules of the proxy in the table"),
		last:            gauge("last", "Rules that the last Sync or repair wrote to the table"),
		failures:        counter("restore_failures_total", "Runs of iptables-restore that failed"),
		partialFailures: counter("partial_restore_failures_total", "Runs of iptables-restore for changes alone that failed: a full comparison follows"),
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

// written notes what a Sync or repair has written; nil is nothing.
func (m *metrics) written(family model.Family, b *dp.Batch) {
	rules := map[dp.Table]int{dp.NAT: 0, dp.Filter: 0}
	if b != nil {
		for _, t := range b.Tables {
			rules[t.Table] = len(t.Insert)
			for _, c := range t.Chains {
				rules[t.Table] += len(c.Rules)
			}
		}
	}
	for table, n := range rules {
		m.last.WithLabelValues(string(table), family.String()).Set(float64(n))
	}
}

// inForce notes how many rules a table has.
func (m *metrics) inForce(family model.Family, table dp.Table, rules int) {
	m.total.WithLabelValues(string(table), family.String()).Set(float64(rules))
}

// failed notes a restore that has failed; partial if it was one of changes alone.
func (m *metrics) failed(family model.Family, partial bool) {
	m.failures.WithLabelValues(family.String()).Inc()
	if partial {
		m.partialFailures.WithLabelValues(family.String()).Inc()
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.total, m.last, m.failures, m.partialFailures}
}

// Describe implements [prometheus.Collector].
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
}
