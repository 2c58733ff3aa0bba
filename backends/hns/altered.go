package hns

import (
	"context"
	"net/netip"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
)

// settings are the fields of a load balancer that HNS may change when it creates one.
type settings struct {
	sourceVIP    netip.Addr
	distribution dp.Distribution
	flags        dp.Flags
	portFlags    dp.PortFlags
}

func settingsOf(lb *dp.LoadBalancer) settings {
	return settings{lb.SourceVIP, lb.Distribution, lb.Flags, lb.PortFlags}
}

// of returns a copy of a load balancer with the settings.
func (s settings) of(lb dp.LoadBalancer) *dp.LoadBalancer {
	lb.SourceVIP, lb.Distribution, lb.Flags, lb.PortFlags = s.sourceVIP, s.distribution, s.flags, s.portFlags
	return &lb
}

// made returns the load balancer that HNS has created for a request, and remembers which settings HNS has changed: load
// balancers with these settings are as they should be.
func (f *family) made(asked *dp.LoadBalancer, id string, has settings) *dp.LoadBalancer {
	lb := has.of(*asked)
	lb.ID = id
	if s := settingsOf(asked); s != has {
		f.altered[s] = has
	}
	return lb
}

// alteredFrom returns the settings that HNS makes of those of a load balancer.
func (f *family) alteredFrom(asked *dp.LoadBalancer) settings {
	s := settingsOf(asked)
	if has, ok := f.altered[s]; ok {
		return has
	}
	return s
}

// maxRepairs is how often a load balancer is repaired that is found in the same wrong state each time.
const maxRepairs = 3

// isFutile reports whether repairing a load balancer once more would not help: HNS is known to change its settings, or
// it was repaired several times and is the same again.
func (f *family) isFutile(ctx context.Context, b *balancer, actual *dp.LoadBalancer) bool {
	if b.have == nil || b.have.SameAs(actual) {
		return false
	}
	want, has := settingsOf(b.have), settingsOf(actual)
	onlySettings := has.of(*b.have).SameAs(actual)
	if known, ok := f.altered[want]; ok && onlySettings && has == known {
		b.have.ID = actual.ID
		return true
	}
	if b.seen == nil || !b.seen.SameAs(actual) {
		b.seen, b.repairs = actual, 0
	}
	if b.repairs++; b.repairs <= maxRepairs {
		return false
	}
	if b.repairs == maxRepairs+1 {
		klog.FromContext(ctx).Error(nil, "HNS does not accept the settings of a load balancer; no longer repairing it",
			"loadBalancer", b.key, "has", *actual, "want", *b.have)
	}
	if onlySettings {
		f.altered[want] = has // HNS will do that to others, too
	}
	b.have.ID = actual.ID
	return true
}
