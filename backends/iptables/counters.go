package iptables

import (
	"context"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// The kernel's counters of packets, for metrics of kube-proxy. Its own have the same names without the prefix. The
// families share them.
const (
	invalidDropped    = "kpl_ct_state_invalid_dropped" // S34
	localhostAccepted = "kpl_localhost_nps_accepted"   // S36
)

func counterNames() []string { return []string{invalidDropped, localhostAccepted} }

// ensureCounters creates the counters that rules may use. Everything works without them.
func (f *family) ensureCounters(ctx context.Context) {
	f.counters = nil
	if f.noCounting {
		return
	}
	for _, name := range counterNames() {
		if err := f.dataplane.EnsureCounter(name); err != nil {
			if !f.toldOfCounters {
				klog.FromContext(ctx).Info("Dropped and accepted packets are not counted: the kernel's nfacct does not work",
					"family", f.features.Family, "reason", err)
			}
			f.toldOfCounters = true
			continue
		}
		f.counters = append(f.counters, name)
	}
}

// count returns a match that counts packets, or "" if the counter does not exist.
func (c *config) count(name string) string {
	if !slices.Contains(c.counters, name) {
		return ""
	}
	return dp.CountWith(name)
}

// countLocalhost returns a rule that counts what is for a node port on a loopback address, once for a connection: all
// of it is masqueraded, and other programs' host ports are not marked (S36).
func (c *config) countLocalhost() []string {
	match := c.count(localhostAccepted)
	if match == "" || !c.localhostNodePorts {
		return nil
	}
	return []string{markMatch(c.mark) + "-m conntrack --ctorigdst 127.0.0.0/8 " + strings.TrimSuffix(match, " ")}
}

// counted is a metric whose value the kernel counts. It has none while there is no counter.
type counted struct {
	desc       *prometheus.Desc
	name       string
	dataplanes []dp.Interface
}

func addCounted(g *shared.Group, dataplanes []dp.Interface) {
	for name, metric := range map[string][2]string{
		invalidDropped: {"ct_state_invalid_dropped_packets_total",
			"Packets that were dropped because connection tracking does not know their connection"},
		localhostAccepted: {"localhost_nodeports_accepted_packets_total",
			"Connections and UDP flows to node ports on loopback addresses that were accepted"},
	} {
		desc := prometheus.NewDesc("kubeproxy_iptables_"+metric[0], metric[1], nil, nil)
		shared.Add(g, &counted{desc, name, dataplanes})
	}
}

// Describe implements [prometheus.Collector].
func (c *counted) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

// Collect implements [prometheus.Collector].
func (c *counted) Collect(ch chan<- prometheus.Metric) {
	for _, d := range c.dataplanes {
		if packets, err := d.CountedPackets(c.name); err == nil {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(packets))
			return
		}
	}
}
