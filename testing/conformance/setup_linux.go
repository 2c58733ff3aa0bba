package conformance

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// env returns the setup as the backend gets it, without NetNS.
func (s setup) env(families []model.Family) Env {
	c := s.oracleConfig(families)
	node := &model.Node{Name: theNode}
	for _, f := range families {
		node.IPs = append(node.IPs, network.PlanOf(f).HostAddresses()[0])
	}
	e := Env{
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

// needs returns the features that a setup requires.
func (s setup) needs() []Feature {
	switch s.nodePorts {
	case onLocalhostToo:
		return []Feature{LoopbackNodePorts}
	case onLoopbackByProxy, onPrimaryAndLocalhost, onLocalhostAlone:
		return []Feature{LoopbackNodePorts, NodePortAddresses}
	case onOtherIPv4Only, onPrimaryAndOtherIPv4:
		return []Feature{NodePortAddresses}
	}
	return nil
}

// Do calls f on a thread in the node's network namespace and returns its error. Sockets that f opens (also with
// net.Dial) and programs that it starts belong to the node. Do may be called concurrently, until the test ends.
func (e Env) Do(f func() error) error { return osthread.In(int(e.NetNS.Fd()), f) }
