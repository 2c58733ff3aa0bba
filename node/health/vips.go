package health

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// vips returns a service's VIPs and external IPs that the host has, in one family, without loopback addresses and
// without those that serve the node ports of all services (S65).
func (s *Services) vips(service *model.Service, f model.Family) []netip.Addr {
	if len(s.host.IPs) == 0 {
		return nil
	}
	var list []netip.Addr
	for _, addrs := range [][]netip.Addr{service.LoadBalancerIPs, service.ExternalIPs} {
		for _, a := range addrs {
			if model.FamilyOf(a) == f && !a.IsLoopback() && has(s.host, a) && !has(s.addrs, a) && !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	return list
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
	changed := func(a netip.Addr) bool { return has(host, a) != has(before, a) }
	for name, service := range s.wanted {
		if slices.ContainsFunc(service.LoadBalancerIPs, changed) || slices.ContainsFunc(service.ExternalIPs, changed) {
			affected(name)
		}
	}
}

// has reports whether an address is one of a list of the host's.
func has(list nodeaddr.Addresses, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(list.IPs, a, netip.Addr.Compare)
	return found
}
