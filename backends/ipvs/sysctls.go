package ipvs

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
)

// trackConnections is the kernel parameter without which the packets of IPVS have no connection tracking, and cannot be
// masqueraded.
const trackConnections = "net/ipv4/vs/conntrack"

// forwardIPv6 makes the kernel forward IPv6 packets. Unless accept_ra is 2, the kernel then ignores router
// advertisements, from which a node may have its own address and default route: so setting it is left to the
// administrator. Upstream kube-proxy, too, sets only the IPv4 counterpart.
const forwardIPv6 = "net/ipv6/conf/all/forwarding"

// SetParameters sets the kernel parameters that a backend needs, as its first Sync does. A privileged process can call
// it on behalf of one without privileges. The error joins one for each parameter that could not be set.
func SetParameters(ctx context.Context, root sysctl.Root, strictARP bool) error {
	type parameter struct {
		name  string
		value int
	}
	wanted := []parameter{
		{trackConnections, 1},
		// Connections to an endpoint that is deleted end at once, and do not wait for a timeout.
		{"net/ipv4/vs/expire_nodest_conn", 1},
		// Session affinity ends with the endpoint (S32).
		{"net/ipv4/vs/expire_quiescent_template", 1},
		// Endpoints' replies to other machines are forwarded.
		{"net/ipv4/ip_forward", 1},
	}
	if strictARP {
		wanted = append(wanted, parameter{"net/ipv4/conf/all/arp_ignore", 1}, parameter{"net/ipv4/conf/all/arp_announce", 2})
	}
	var errs []error
	for _, w := range wanted {
		changed, err := root.SetInt(w.name, w.value)
		if changed && err == nil {
			klog.FromContext(ctx).Info("Set a kernel parameter", "name", w.name, "value", w.value)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// prepare sets the kernel parameters and timeouts that everything depends on, before each full comparison.
func (o *Options) prepare(ctx context.Context, f model.Family) error {
	if err := SetParameters(ctx, o.Sysctls, o.StrictARP); err != nil {
		if value, readErr := o.Sysctls.Get(trackConnections); readErr != nil || value != "1" {
			return fmt.Errorf("IPVS needs connection tracking: %w", err)
		}
		klog.FromContext(ctx).Error(err, "A kernel parameter does not have the required value")
	}
	if value, err := o.Sysctls.Get(forwardIPv6); f == model.IPv6 && err == nil && value == "0" {
		klog.FromContext(ctx).Error(nil, "The kernel does not forward IPv6: only clients on this node get replies. Set the "+
			"parameter, and accept_ra to 2 on interfaces that take their route from router advertisements",
			"parameter", forwardIPv6)
	}
	if t := o.Timeouts; t.TCP != 0 || t.TCPFin != 0 || t.UDP != 0 {
		// If the kernel refuses a timeout, services are served anyway.
		if err := o.Dataplane.SetTimeouts(ctx, dp.Timeouts(t)); err != nil {
			klog.FromContext(ctx).Error(err, "Could not set the connection timeouts")
		}
	}
	return nil
}
