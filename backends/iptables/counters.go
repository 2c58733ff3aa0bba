package iptables

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// The kernel's counters of packets, for two metrics of kube-proxy, whose own are ct_state_invalid_dropped_pkts and
// localhost_nps_accepted_pkts. The families share them.
const (
	invalidDropped    = "kpl_ct_state_invalid_dropped" // S34
	localhostAccepted = "kpl_localhost_nps_accepted"   // S36
)

func counterNames() []string { return []string{invalidDropped, localhostAccepted} }

// counting returns the counters that rules may use.
func (f *family) counting() []string {
	if list := f.counters.Load(); list != nil {
		return *list
	}
	return nil
}

// ensureCounters creates the counters, which others may have removed. Everything works without them.
func (f *family) ensureCounters(ctx context.Context) {
	var list []string
	for _, name := range counterNames() {
		if f.noCounting {
			break
		}
		if err := f.dataplane.EnsureCounter(name); err != nil {
			if !f.toldOfCounters {
				klog.FromContext(ctx).Info("Dropped and accepted packets are not counted: the kernel's nfacct does not work",
					"family", f.features.Family, "reason", err)
			}
			f.toldOfCounters = true
			continue
		}
		list = append(list, name)
	}
	f.useCounters(list)
}

// useCounters plans rules that count with these counters.
func (f *family) useCounters(list []string) {
	f.counters.Store(&list)
	if !slices.Equal(f.config.counters, list) {
		f.config.counters = list
		f.setBase()
	}
}

// retryCounting finds out whether the match that was missing is there.
func (f *family) retryCounting(ctx context.Context) {
	if err := f.dataplane.EnsureCounter(invalidDropped); err == nil {
		f.noCounting = f.newSearch().try(ctx, countingRules([]string{invalidDropped})) != nil
	}
}

// countingRules are rules that only count.
func countingRules(counters []string) (rules [2][]string) {
	for _, name := range counters {
		rules[inNAT] = append(rules[inNAT], dp.CountWith(name)+"-j RETURN")
	}
	return rules
}

// count returns a match that counts packets, or "" if the counter does not exist.
func (c *config) count(name string) string {
	if !slices.Contains(c.counters, name) {
		return ""
	}
	return dp.CountWith(name)
}

// countLocalhost returns a rule that counts what is for a node port on a loopback address, once for a flow (S36): all
// of it has the mark, because it is masqueraded. Another program's host port counts as well if that sets the same mark.
func (c *config) countLocalhost() []string {
	match := c.count(localhostAccepted)
	if match == "" || !c.localhostNodePorts {
		return nil
	}
	return []string{markMatch(c.mark) + "-m conntrack --ctorigdst 127.0.0.0/8 " + strings.TrimSuffix(match, " ")}
}

// removeCounters removes the counters, except those that others use.
func removeCounters(dataplanes []dp.Interface) (err error) {
	for _, d := range dataplanes {
		for _, name := range counterNames() {
			err = errors.Join(err, d.RemoveCounter(name))
		}
	}
	return err
}

// counted is a metric whose value the kernel counts. It has none while no rule counts.
type counted struct {
	desc     *prometheus.Desc
	name     string
	families []*family
}

func addCounted(g *shared.Group, families []*family) {
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
	for _, f := range c.families {
		if !slices.Contains(f.counting(), c.name) {
			continue
		}
		if packets, err := f.dataplane.CountedPackets(c.name); err == nil {
			ch <- prometheus.MustNewConstMetric(c.desc, prometheus.CounterValue, float64(packets))
			return
		}
	}
}
