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
	// NodePortCIDRs says which host addresses serve node ports (S35). A family without any: all its addresses.
	NodePortCIDRs []netip.Prefix
	// NodePortPrimary: only Node.IPs serve node ports ("primary"), whatever NodePortCIDRs says.
	NodePortPrimary bool
	// LocalhostNodePorts: node ports are served on 127.0.0.0/8 too, where NodePortCIDRs allows it (S36). Never on ::1.
	LocalhostNodePorts bool
}

// servesNodePorts reports whether node ports are served on an address (S35, S36).
func (o *Oracle) servesNodePorts(addr netip.Addr) bool {
	switch {
	case addr.IsLoopback():
		return addr.Is4() && o.config.LocalhostNodePorts && !o.config.NodePortPrimary && o.inNodePortCIDRs(addr)
	case !slices.Contains(o.config.HostAddresses, addr):
		return false
	case o.config.NodePortPrimary:
		return slices.Contains(o.node.IPs, addr)
	}
	return o.inNodePortCIDRs(addr)
}

// mayServeNodePorts reports whether servesNodePorts can be read either way: for upstream, "primary" is the first
// address of a family; for S35 it is each that Kubernetes knows.
func (o *Oracle) mayServeNodePorts(addr netip.Addr) bool {
	return o.config.NodePortPrimary && addr != o.node.IP(model.FamilyOf(addr))
}

func (o *Oracle) inNodePortCIDRs(addr netip.Addr) bool {
	all := true
	for _, cidr := range o.config.NodePortCIDRs {
		if cidr.Contains(addr) {
			return true
		}
		all = all && model.FamilyOf(cidr.Addr()) != model.FamilyOf(addr)
	}
	return all
}
