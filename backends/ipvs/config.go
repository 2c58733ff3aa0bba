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
	localPods    model.LocalPods
	serviceCIDRs []netip.Prefix
	// nodePortIPs serve node ports.
	nodePortIPs []netip.Addr
}

func newConfig(f model.Family, o *Options, node *model.Node, nodePortIPs []netip.Addr) *config {
	c := &config{family: f, mark: o.MasqueradeMark, localPods: node.LocalPods.Of(f),
		serviceCIDRs: model.PrefixesOf(f, node.ServiceCIDRs)}
	for _, a := range nodePortIPs {
		if model.FamilyOf(a) == f && !a.IsLoopback() {
			c.nodePortIPs = append(c.nodePortIPs, a)
		}
	}
	return c
}

// equal reports whether two configurations give the same result.
func (c *config) equal(o *config) bool {
	return o != nil && c.family == o.family && c.mark == o.mark && c.localPods.Equal(o.localPods) &&
		slices.Equal(c.serviceCIDRs, o.serviceCIDRs) && slices.Equal(c.nodePortIPs, o.nodePortIPs)
}
