package conformance

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// env returns the setup as the backend is told it; NetNS is missing.
func (s setup) env(families []model.Family) Env {
	c := s.oracleConfig(families)
	e := Env{
		Families: families, NodeIPs: s.node(families).IPs, HostAddresses: c.HostAddresses,
		NodePortCIDRs: c.NodePortCIDRs, LocalhostNodePorts: c.LocalhostNodePorts,
	}
	for _, f := range families {
		restricted := false
		for _, cidr := range c.NodePortCIDRs {
			restricted = restricted || model.FamilyOf(cidr.Addr()) == f
		}
		for _, a := range c.HostAddresses {
			if model.FamilyOf(a) == f && (!restricted || contains(c.NodePortCIDRs, a)) {
				e.NodePortAddresses = append(e.NodePortAddresses, a)
			}
		}
	}
	return e
}

// needs returns the features without which a setup makes no sense.
func (s setup) needs() []Feature {
	var needs []Feature
	if s.detector == byBridge || s.detector == byInterface {
		needs = append(needs, InterfaceDetectors)
	}
	switch s.nodePorts {
	case onLocalhostToo:
		needs = append(needs, LocalhostNodePorts)
	case onOtherIPv4Only:
		needs = append(needs, NodePortAddresses)
	}
	return needs
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
