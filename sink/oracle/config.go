package oracle

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Config is the configuration of the backend and its node, as far as it affects packets. Decisions that are made before
// the backend (the local-traffic detector, masquerade-all) are in the model.
type Config struct {
	// HostAddresses are the addresses of the host's network interfaces, without the service addresses that some
	// backends add to an interface. Loopback addresses need not be named. Default: Node.IPs.
	HostAddresses []netip.Addr
	// NodePortCIDRs and NodePortPrimary say which host addresses serve node ports (S35): those in the CIDRs and, if
	// NodePortPrimary is set, Node.IPs. If it is not set, all addresses of a family without a CIDR do.
	NodePortCIDRs   []netip.Prefix
	NodePortPrimary bool
	// LocalhostNodePorts: node ports are served on 127.0.0.0/8 too, where NodePortCIDRs allows it (S36). Never on ::1.
	LocalhostNodePorts bool
	// LoopbackProxy: node ports, but not those of SCTP, are served on 127.0.0.1 and ::1 by a proxy on the node, where
	// NodePortCIDRs allows it (S36a).
	LoopbackProxy bool
}

// servesNodePorts reports whether node ports are served on an address (S35, S36).
func (o *Oracle) servesNodePorts(addr netip.Addr) bool {
	switch {
	case addr.IsLoopback():
		return (addr.Is4() && o.config.LocalhostNodePorts || o.isProxied(addr)) && o.inNodePortCIDRs(addr)
	case !o.isOnInterface(addr):
		return false
	}
	return o.config.NodePortPrimary && slices.Contains(o.node.IPs, addr) || o.inNodePortCIDRs(addr)
}

// isProxied reports whether node ports on an address are served by a proxy on the node (S36a).
func (o *Oracle) isProxied(addr netip.Addr) bool {
	return o.config.LoopbackProxy && (addr == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || addr == netip.IPv6Loopback())
}

// mayServeNodePorts reports whether serving node ports on an address is optional: for upstream, "primary" is the first
// address of a family; for S35 it is every address that Kubernetes knows.
func (o *Oracle) mayServeNodePorts(addr netip.Addr) bool {
	return o.config.NodePortPrimary && addr != o.node.IP(model.FamilyOf(addr)) && !o.inNodePortCIDRs(addr)
}

func (o *Oracle) inNodePortCIDRs(addr netip.Addr) bool {
	all := !o.config.NodePortPrimary
	for _, cidr := range o.config.NodePortCIDRs {
		if cidr.Contains(addr) {
			return true
		}
		all = all && model.FamilyOf(cidr.Addr()) != model.FamilyOf(addr)
	}
	return all
}
