package conformance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// setup is the configuration of the node under test and its backend. Cases with the same setup share a backend.
type setup struct {
	detector      detector
	nodePorts     nodePorts
	masqueradeAll bool // all traffic to cluster IPs (S28)
}

// detector selects how local pods are told from other sources (S30).
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

// nodePorts selects the node's addresses that serve node ports (S35, S36).
type nodePorts int

const (
	onNodeIPs             nodePorts = iota // the node's addresses in Kubernetes
	onAllAddresses                         // all
	onLocalhostToo                         // all, and 127.0.0.1
	onOtherIPv4Only                        // an IPv4 address that is not the primary one; unspecified for IPv6
	onPrimaryAndOtherIPv4                  // "primary", and another IPv4 address
	onPrimaryAndLocalhost                  // "primary" and "localhost"
	onLocalhostAlone                       // "localhost" alone
	onLoopbackByProxy                      // "primary", and "localhost" through a proxy on the node
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

// localstate returns the options for package localstate.
func (s setup) localstate(families []model.Family) localstate.Options {
	o := localstate.Options{NodeName: theNode, Families: families, MasqueradeAll: s.masqueradeAll}
	switch s.detector {
	case byNodeCIDR:
		o.DetectLocal.NodeCIDR = true
	case byClusterCIDR:
		for _, f := range families {
			o.DetectLocal.ClusterCIDRs = append(o.DetectLocal.ClusterCIDRs, network.PlanOf(f).AllPods)
		}
	case byBridge:
		o.DetectLocal.Bridge = network.BridgeName
	case byInterface:
		o.DetectLocal.InterfacePrefix = network.BridgeName[:len(network.BridgeName)-1]
	}
	return o
}

// objects returns the Node and the ServiceCIDR.
func (s setup) objects(families []model.Family) []metav1.Object {
	var services []string
	for _, f := range families {
		services = append(services, network.ClusterIPs(f).String())
	}
	return []metav1.Object{nodeObject(theNode, families), kube.ServiceCIDR("kubernetes", services...)}
}

// nodeObject returns a Node. Only the node under test has a zone and a pod CIDR.
func nodeObject(name string, families []model.Family) metav1.Object {
	node := kube.Node(name)
	if name == theNode {
		node.Zone(zoneHere)
	}
	for _, f := range families {
		node.InternalIP(network.PlaceNamed(name).Addr(f).String())
		if name == theNode {
			node.PodCIDR(network.PlanOf(f).LocalPods.String())
		}
	}
	return node.Build()
}

// oracleConfig converts the setup to the oracle's form.
func (s setup) oracleConfig(families []model.Family) oracle.Config {
	c := oracle.Config{LocalhostNodePorts: s.nodePorts.needsLocalhost(),
		LoopbackProxy: s.nodePorts == onLoopbackByProxy,
		NodePortPrimary: s.nodePorts == onPrimaryAndOtherIPv4 || s.nodePorts == onPrimaryAndLocalhost ||
			s.nodePorts == onLoopbackByProxy}
	for _, f := range families {
		host := network.PlanOf(f).HostAddresses()
		c.HostAddresses = append(c.HostAddresses, host...)
		switch {
		case s.nodePorts == onNodeIPs:
			c.NodePortCIDRs = append(c.NodePortCIDRs, network.HostPrefix(host[0]))
		case s.nodePorts == onPrimaryAndLocalhost, s.nodePorts == onLocalhostAlone, s.nodePorts == onLoopbackByProxy:
			c.NodePortCIDRs = append(c.NodePortCIDRs, f.Loopback())
		case (s.nodePorts == onOtherIPv4Only || s.nodePorts == onPrimaryAndOtherIPv4) && f == model.IPv4:
			c.NodePortCIDRs = append(c.NodePortCIDRs, network.PlanOf(f).ToOtherNode)
		}
	}
	return c
}
