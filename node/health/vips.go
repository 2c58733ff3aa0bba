package health

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/healthcheck"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// vips returns a service's VIPs and external IPs that the host has, in one family, without loopback addresses and
// without those that serve the node ports of all services (S65); and whether there are more than it may have.
func (s *Services) vips(service *model.Service, f model.Family) (list []netip.Addr, tooMany bool) {
	if len(s.host.IPs) == 0 {
		return nil, false
	}
	return healthcheck.VIPs(service, func(a netip.Addr) bool {
		s.outside.looked++
		return model.FamilyOf(a) == f && !a.IsLoopback() && has(s.host, a) && !has(s.addrs, a)
	})
}

// reportTooMany says, once, that a service is not checked at all of its addresses. all: tooMany is about both families.
func (s *Services) reportTooMany(ctx context.Context, i *instance, tooMany, all bool) {
	if tooMany && !i.tooMany {
		note := fmt.Sprintf("node %s serves healthcheck %q at %d of its load-balancer and external IPs in each family, "+
			"not at the others", s.opts.NodeName, i.name, healthcheck.MaxVIPs)
		klog.FromContext(ctx).Info("A service has too many addresses for its health check", "service", i.name,
			"limit", healthcheck.MaxVIPs)
		if s.opts.Events != nil {
			s.opts.Events.ServiceWarning(i.name, "TooManyHealthCheckAddresses", "Listen", note)
		}
	}
	i.tooMany = tooMany || i.tooMany && !all
}

// isVIP reports whether an address to listen on is that of a service.
func (s *Services) isVIP(a netip.Addr) bool { return !a.IsUnspecified() && !has(s.addrs, a) }

// takeHost reads the host's addresses, and calls affected for each service with a VIP or external IP among those that
// were added or removed.
func (s *Services) takeHost(affected func(model.ServiceName)) {
	before, host := s.host, s.opts.HostAddresses()
	if host.Equal(before) {
		return
	}
	s.host = host
	changed := onlyInOne(before.IPs, host.IPs)
	for name, service := range s.wanted {
		if s.intersect(changed, service.LoadBalancerIPs) || s.intersect(changed, service.ExternalIPs) {
			affected(name)
		}
	}
}

// onlyInOne returns the addresses that one of two sorted lists has and the other has not.
func onlyInOne(a, b []netip.Addr) (list []netip.Addr) {
	for len(a) > 0 && len(b) > 0 {
		switch c := a[0].Compare(b[0]); {
		case c < 0:
			list, a = append(list, a[0]), a[1:]
		case c > 0:
			list, b = append(list, b[0]), b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	return append(append(list, a...), b...)
}

// intersect reports whether two sorted lists have an address in common. It searches for those of the shorter one.
func (s *Services) intersect(a, b []netip.Addr) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	return slices.ContainsFunc(a, func(x netip.Addr) bool {
		s.outside.looked++
		_, found := slices.BinarySearchFunc(b, x, netip.Addr.Compare)
		return found
	})
}

// has reports whether an address is one of a list of the host's.
func has(list nodeaddr.Addresses, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(list.IPs, a, netip.Addr.Compare)
	return found
}
