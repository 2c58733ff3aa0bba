package cluster

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Env returns the setup as the backend gets it, without NetNS.
func (s Setup) Env(families []model.Family) backend.Env {
	c := s.OracleConfig(families)
	node := &model.Node{Name: network.TheNode}
	for _, f := range families {
		node.IPs = append(node.IPs, network.PlanOf(f).HostAddresses()[0])
	}
	e := backend.Env{
		Families: families, NodeIPs: node.IPs, HostAddresses: c.HostAddresses, OtherNodeIPs: otherNodeIPs(families),
		NodePorts:          nodeaddr.Choice{CIDRs: c.NodePortCIDRs, Primary: c.NodePortPrimary},
		LocalhostNodePorts: c.LocalhostNodePorts,
		LoopbackProxy:      c.LoopbackProxy,
	}
	for _, a := range e.NodePorts.Of(c.HostAddresses, node).IPs {
		if slices.Contains(c.HostAddresses, a) {
			e.NodePortAddresses = append(e.NodePortAddresses, a)
		}
	}
	return e
}

// Needs returns the features that a setup requires.
func (s Setup) Needs() []backend.Feature {
	switch s.NodePorts {
	case OnLocalhostToo:
		return []backend.Feature{backend.LoopbackNodePorts}
	case OnLoopbackByProxy, OnPrimaryAndLocalhost, OnLocalhostAlone:
		return []backend.Feature{backend.LoopbackNodePorts, backend.NodePortAddresses}
	case OnOtherIPv4Only, OnPrimaryAndOtherIPv4:
		return []backend.Feature{backend.NodePortAddresses}
	}
	return nil
}

// otherNodeIPs returns the addresses of the nodes that are not under test.
func otherNodeIPs(families []model.Family) (list []netip.Addr) {
	for _, name := range []string{network.OtherNode, network.ThirdNode} {
		for _, f := range families {
			list = append(list, network.HostNamed(name).Addr(f))
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}
