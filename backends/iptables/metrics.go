package iptables

import (
	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's in this mode, with its names and labels, of one family.
type metrics struct {
	total, last               *prometheus.GaugeVec
	failures, partialFailures prometheus.Counter
}

func newMetrics(g *shared.Group, f model.Family) *metrics {
	const prefix = "kubeproxy_sync_proxy_rules_iptables_"
	gauge := func(name, help string) *prometheus.GaugeVec {
		o := prometheus.GaugeOpts{Name: prefix + name, Help: help, ConstLabels: shared.Labels(f)}
		return shared.Add(g, prometheus.NewGaugeVec(o, []string{"table"}))
	}
	return &metrics{
		total:    gauge("total", "Rules of the proxy in the table"),
		last:     gauge("last", "Rules that the last Sync or repair wrote to the table"),
		failures: g.Counter(f, prefix+"restore_failures_total", "Failed runs of iptables-restore"),
		partialFailures: g.Counter(f, prefix+"partial_restore_failures_total",
			"Failed runs of iptables-restore that wrote changes only; a full comparison follows"),
	}
}

func (m *metrics) written(b *dp.Batch) {
	rules := map[dp.Table]int{} // a table may be changed in several transactions
	for _, t := range b.Tables {
		rules[t.Table] += len(t.Insert)
		for _, c := range t.Chains {
			rules[t.Table] += len(c.Rules)
		}
	}
	for table, n := range rules {
		m.last.WithLabelValues(string(table)).Set(float64(n))
	}
}

func (m *metrics) applied(table dp.Table, rules int) {
	m.total.WithLabelValues(string(table)).Set(float64(rules))
}

// failed notes a restore that has failed; partial if it was one of changes alone.
func (m *metrics) failed(partial bool) {
	m.failures.Inc()
	if partial {
		m.partialFailures.Inc()
	}
}

// counted is a metric whose value the kernel counts. It has none while no rule counts.
type counted struct {
	desc     *prometheus.Desc
	name     string
	families map[model.Family]*family
}

func addCounted(g *shared.Group, families map[model.Family]*family) {
	for name, metric := range map[string][2]string{
		invalidDropped: {"ct_state_invalid_dropped_packets_total",
			"Packets that were dropped because connection tracking does not know their connection"},
		localhostAccepted: {"localhost_nodeports_accepted_packets_total",
			"Connections and UDP flows to node ports on loopback addresses that were accepted"},
	} {
		desc := prometheus.NewDesc("kubeproxy_iptables_"+metric[0], metric[1], nil, nil)
		shared.Add(g, &counted{desc, name, families})
	}
}

// Describe implements [prometheus.Collector].
func (c *counted) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements [prometheus.Collector].
func (c *counted) Collect(ch chan<- prometheus.Metric) {
	for _, family := range model.Families() {
		f := c.families[family]
		if f == nil || !f.counts.Load() {
			continue
		}
		if packets, err := f.dataplane.CountedPackets(c.name); err == nil {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(packets))
			return
		}
	}
}
