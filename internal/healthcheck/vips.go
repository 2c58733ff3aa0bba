// Package healthcheck says at which addresses of its own a Service's health check answers (S65): package node/health
// listens there, and preflight predicts it.
package healthcheck

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// MaxVIPs is at how many of its VIPs and external IPs a service is checked, in each family. Each takes a socket and a
// goroutine, a service may list tens of thousands, and with mode ipvs the host has them all.
const MaxVIPs = 16

// VIPs returns the first MaxVIPs of a service's VIPs and external IPs that are usable, VIPs before external IPs, and
// whether there are more. It asks usable only until it knows that; usable decides on the family, too.
func VIPs(service *model.Service, usable func(netip.Addr) bool) (list []netip.Addr, more bool) {
	for _, addrs := range [][]netip.Addr{service.LoadBalancerIPs, service.ExternalIPs} {
		for _, a := range addrs {
			switch {
			case !usable(a) || slices.Contains(list, a):
			case len(list) == MaxVIPs:
				return list, true
			default:
				list = append(list, a)
			}
		}
	}
	return list, false
}
