package conformance

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/internal/osthread"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// env returns the setup as the backend is told it; NetNS is missing.
func (s setup) env(families []model.Family) Env {
	c := s.oracleConfig(families)
	node := &model.Node{Name: theNode}
	for _, f := range families {
		node.IPs = append(node.IPs, network.PlanOf(f).HostAddresses()[0])
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

// Do calls f on a thread that is in the network namespace of the node, and returns its error: sockets that f opens,
// with net.Dial as well, and programs that it starts belong to the node. It may be called from any goroutine,
// concurrently, until the test ends.
func (e Env) Do(f func() error) error { return osthread.In(int(e.NetNS.Fd()), f) }
