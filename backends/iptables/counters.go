package iptables

import (
	"context"
	"errors"
	"strings"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
)

// The kernel's counters of packets, for two metrics of kube-proxy, whose own are ct_state_invalid_dropped_pkts and
// localhost_nps_accepted_pkts. The families share them.
const (
	invalidDropped    = "kpl_ct_state_invalid_dropped" // S34
	localhostAccepted = "kpl_localhost_nps_accepted"   // S36
)

func counterNames() []string { return []string{invalidDropped, localhostAccepted} }

// createCounters creates the counters that do not exist: others may have removed them.
func (f *family) createCounters() error {
	for _, name := range counterNames() {
		if err := f.dataplane.EnsureCounter(name); err != nil {
			return err
		}
	}
	return nil
}

// ensureCounters creates the counters, unless counting is off. Everything works without them.
func (f *family) ensureCounters(ctx context.Context) {
	if f.noCounting {
		return
	}
	err := f.createCounters()
	if err != nil {
		klog.FromContext(ctx).Info("Dropped and accepted packets are not counted: the kernel's nfacct does not work",
			"family", f.features.Family, "reason", err)
	}
	f.setCounting(err == nil)
}

// setCounting plans rules that count, or that do not.
func (f *family) setCounting(on bool) {
	f.noCounting = !on
	f.counts.Store(on)
	if f.config.counts != on {
		f.config.counts = on
		f.setBase()
	}
}

// retryCounting checks whether the kernel now has what counting lacked.
func (f *family) retryCounting(ctx context.Context) {
	if f.createCounters() == nil {
		f.noCounting = f.newSearch().try(ctx, trial(dp.CountWith(invalidDropped))) != nil
	}
}

// count returns a match that counts packets, or "" if rules do not count.
func (c *config) count(name string) string {
	if !c.counts {
		return ""
	}
	return dp.CountWith(name)
}

// countLocalhost returns a rule that counts what is for a node port on a loopback address, once for a flow (S36): all
// of it has the mark, because it is masqueraded. Another program's host port counts as well if that sets the same mark.
func (c *config) countLocalhost() []string {
	if !c.counts || !c.localhostNodePorts {
		return nil
	}
	return []string{markMatch(c.mark) + "-m conntrack --ctorigdst 127.0.0.0/8 " +
		strings.TrimSuffix(dp.CountWith(localhostAccepted), " ")}
}

// removeCounters removes the counters, except those that others use.
func removeCounters(d dp.Interface) (err error) {
	for _, name := range counterNames() {
		err = errors.Join(err, d.RemoveCounter(name))
	}
	return err
}

// removeCounters removes what the families share.
func (b *Backend) removeCounters(context.Context) (err error) {
	for _, f := range b.families {
		f.counts.Store(false)
		err = errors.Join(err, removeCounters(f.dataplane))
	}
	return err
}
