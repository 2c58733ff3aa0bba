package conformance

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// env returns the setup as the backend is told it; NetNS is missing.
func (s setup) env(families []model.Family) Env {
	c := s.oracleConfig(families)
	node := &model.Node{Name: theNode}
	for _, f := range families {
		node.IPs = append(node.IPs, planOf(f).hostAddresses()[0])
	}
	e := Env{
		Families: families, NodeIPs: node.IPs, HostAddresses: c.HostAddresses,
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

// needs returns the features without which a setup makes no sense.
func (s setup) needs() []Feature {
	var needs []Feature
	if s.detector == byBridge || s.detector == byInterface {
		needs = append(needs, InterfaceDetectors)
	}
	if s.nodePorts.needsLocalhost() {
		needs = append(needs, LocalhostNodePorts)
	}
	switch s.nodePorts {
	case onLoopbackByProxy:
		needs = append(needs, LoopbackProxy, NodePortAddresses)
	case onOtherIPv4Only, onPrimaryAndOtherIPv4, onPrimaryAndLocalhost, onLocalhostAlone:
		needs = append(needs, NodePortAddresses)
	}
	return needs
}
