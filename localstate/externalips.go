package localstate

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
)

// ExternalIPs returns the external IPs and VIPs that a Service lists, sorted, without duplicates and malformed ones.
// Which of them are served also depends on the Service's families and on the options.
func ExternalIPs(obj *corev1.Service) (list []netip.Addr) {
	add := func(text string) {
		if a, err := lenient.Addr(text); err == nil {
			list = append(list, a)
		}
	}
	for _, text := range obj.Spec.ExternalIPs {
		add(text)
	}
	for _, ingress := range obj.Status.LoadBalancer.Ingress {
		if isVIP(&ingress) {
			add(ingress.IP)
		}
	}
	return sortedSet(list, netip.Addr.Compare)
}

// isVIP reports whether an address of a load balancer is served (S7).
func isVIP(ingress *corev1.LoadBalancerIngress) bool {
	return ingress.IP != "" && (ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP)
}
