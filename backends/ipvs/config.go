package ipvs

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// config has the parts of the node and the options that virtual servers and rules depend on, in one family.
type config struct {
	family       model.Family
	mark         uint32 // of packets to masquerade
	marks        uint32 // bits of marks that select virtual servers
	localPods    model.LocalPods
	serviceCIDRs []netip.Prefix
	// nodePortIPs serve node ports.
	nodePortIPs []netip.Addr
	hostIPs     []netip.Addr // sorted
}

func newConfig(f model.Family, o *Options, node *model.Node, nodePortIPs, hostIPs []netip.Addr) *config {
	return &config{family: f, mark: o.MasqueradeMark, marks: o.Marks, localPods: node.LocalPods.Of(f),
		serviceCIDRs: model.PrefixesOf(f, node.ServiceCIDRs),
		nodePortIPs:  slices.DeleteFunc(nodePortIPs, netip.Addr.IsLoopback), hostIPs: hostIPs}
}

// equal reports whether two configurations give the same result.
func (c *config) equal(o *config) bool {
	return o != nil && c.family == o.family && c.mark == o.mark && c.marks == o.marks && c.localPods.Equal(o.localPods) &&
		slices.Equal(c.serviceCIDRs, o.serviceCIDRs) && slices.Equal(c.nodePortIPs, o.nodePortIPs) &&
		slices.Equal(c.hostIPs, o.hostIPs)
}
