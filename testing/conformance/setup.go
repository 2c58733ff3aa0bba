package conformance

import (
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// setup is how the node under test and its backend are configured. Cases with the same setup share a backend.
type setup struct {
	detector  detector
	nodePorts nodePorts
}

// detector is how local pods are distinguished from other sources (S30).
type detector int

const (
	byNodeCIDR    detector = iota // the range of the node's own pods
	byClusterCIDR                 // the range of all pods of the cluster
	byBridge
	byInterface
	undetected
)

func (d detector) String() string {
	return [...]string{"node CIDR", "cluster CIDR", "bridge", "interface prefix", "none"}[d]
}

// nodePorts says which addresses of the node serve node ports (S35, S36).
type nodePorts int

const (
	onNodeIPs             nodePorts = iota // those that Kubernetes knows
	onAllAddresses                         // any
	onLocalhostToo                         // any, and 127.0.0.1
	onOtherIPv4Only                        // one in IPv4 that is not the node's primary one; says nothing about IPv6
	onPrimaryAndOtherIPv4                  // "primary", and one in IPv4 besides
	onPrimaryAndLocalhost                  // "primary" and "localhost"
	onLocalhostAlone                       // "localhost"
	onLoopbackByProxy                      // "primary", and "localhost" by a proxy on the node
)

func (n nodePorts) String() string {
	return [...]string{"on the node's own addresses", "on all addresses", "on all addresses and 127.0.0.1",
		"on another address of the node (IPv4), on all (IPv6)",
		"on the primary address, and another one (IPv4)", "on the primary address and on localhost",
		"on localhost alone",
		"on the primary address, and on localhost by a proxy"}[n]
}

// needsLocalhost reports whether node ports are served on 127.0.0.1.
func (n nodePorts) needsLocalhost() bool {
	return n == onLocalhostToo || n == onPrimaryAndLocalhost || n == onLocalhostAlone
}

// node returns the node as the backend receives it.
func (s setup) node(families []model.Family) *model.Node {
	n := &model.Node{Name: theNode}
	for _, f := range families {
		p := planOf(f)
		n.IPs = append(n.IPs, p.hostAddresses()[0])
		n.PodCIDRs = append(n.PodCIDRs, p.localPods)
		n.ServiceCIDRs = append(n.ServiceCIDRs, p.services)
		switch s.detector {
		case byNodeCIDR:
			n.LocalPods.CIDRs = append(n.LocalPods.CIDRs, p.localPods)
		case byClusterCIDR:
			n.LocalPods.CIDRs = append(n.LocalPods.CIDRs, p.allPods)
		}
	}
	switch s.detector {
	case byBridge:
		n.LocalPods.Bridge = bridgeName
	case byInterface:
		n.LocalPods.InterfacePrefix = bridgeName[:len(bridgeName)-1]
	}
	return n
}

// oracleConfig returns the setup as the oracle wants it.
func (s setup) oracleConfig(families []model.Family) oracle.Config {
	c := oracle.Config{LocalhostNodePorts: s.nodePorts.needsLocalhost(),
		LoopbackProxy: s.nodePorts == onLoopbackByProxy,
		NodePortPrimary: s.nodePorts == onPrimaryAndOtherIPv4 || s.nodePorts == onPrimaryAndLocalhost ||
			s.nodePorts == onLoopbackByProxy}
	for _, f := range families {
		host := planOf(f).hostAddresses()
		c.HostAddresses = append(c.HostAddresses, host...)
		switch {
		case s.nodePorts == onNodeIPs:
			c.NodePortCIDRs = append(c.NodePortCIDRs, hostPrefix(host[0]))
		case s.nodePorts == onPrimaryAndLocalhost, s.nodePorts == onLocalhostAlone, s.nodePorts == onLoopbackByProxy:
			c.NodePortCIDRs = append(c.NodePortCIDRs, f.Loopback())
		case (s.nodePorts == onOtherIPv4Only || s.nodePorts == onPrimaryAndOtherIPv4) && f == model.IPv4:
			c.NodePortCIDRs = append(c.NodePortCIDRs, planOf(f).toOtherNode)
		}
	}
	return c
}
