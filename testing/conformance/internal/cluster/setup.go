package cluster

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// Setup is the configuration of the node under test and its backend. Cases with the same setup share a backend.
type Setup struct {
	Detector      Detector
	NodePorts     nodePorts
	MasqueradeAll bool // all traffic to cluster IPs (S28)
}

// String describes the configuration.
func (s Setup) String() string {
	return fmt.Sprintf("local pods by %v, node ports %v, masquerade all %t", s.Detector, s.NodePorts, s.MasqueradeAll)
}

// Detector selects how local pods are distinguished from other sources (S30).
type Detector int

const (
	ByNodeCIDR    Detector = iota // the range of the node's own pods
	ByClusterCIDR                 // the range of all pods of the cluster
	ByBridge
	ByInterface
	Undetected
)

func (d Detector) String() string {
	return [...]string{"node CIDR", "cluster CIDR", "bridge", "interface prefix", "none"}[d]
}

// nodePorts selects the node's addresses that serve node ports (S35, S36).
type nodePorts int

const (
	OnNodeIPs             nodePorts = iota // the node's addresses in Kubernetes
	OnAllAddresses                         // all
	OnLocalhostToo                         // all, and 127.0.0.1
	OnOtherIPv4Only                        // an IPv4 address that is not the primary one; unspecified for IPv6
	OnPrimaryAndOtherIPv4                  // "primary", and another IPv4 address
	OnPrimaryAndLocalhost                  // "primary" and "localhost"
	OnLocalhostAlone                       // "localhost" alone
	OnLoopbackByProxy                      // "primary", and "localhost" through a proxy on the node
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
	return n == OnLocalhostToo || n == OnPrimaryAndLocalhost || n == OnLocalhostAlone
}

// Localstate returns the options for package localstate.
func (s Setup) Localstate(families []model.Family) localstate.Options {
	o := localstate.Options{NodeName: network.TheNode, Families: families, MasqueradeAll: s.MasqueradeAll}
	switch s.Detector {
	case ByNodeCIDR:
		o.DetectLocal.NodeCIDR = true
	case ByClusterCIDR:
		for _, f := range families {
			o.DetectLocal.ClusterCIDRs = append(o.DetectLocal.ClusterCIDRs, network.PlanOf(f).AllPods)
		}
	case ByBridge:
		o.DetectLocal.Bridge = network.BridgeName
	case ByInterface:
		o.DetectLocal.InterfacePrefix = network.BridgeName[:len(network.BridgeName)-1]
	}
	return o
}

// Objects returns the Node and the ServiceCIDR.
func (s Setup) Objects(families []model.Family) []metav1.Object {
	var services []string
	for _, f := range families {
		services = append(services, network.ClusterIPs(f).String())
	}
	return []metav1.Object{NodeObject(network.TheNode, families), kube.ServiceCIDR("kubernetes", services...)}
}

// NodeObject returns a Node. Only the node under test has a zone and a pod CIDR.
func NodeObject(name string, families []model.Family) metav1.Object {
	node := kube.Node(name)
	if name == network.TheNode {
		node.Zone(zoneHere)
	}
	for _, f := range families {
		node.InternalIP(network.HostNamed(name).Addr(f).String())
		if name == network.TheNode {
			node.PodCIDR(network.PlanOf(f).LocalPods.String())
		}
	}
	return node.Build()
}

// OracleConfig converts the setup to the oracle's form.
func (s Setup) OracleConfig(families []model.Family) oracle.Config {
	c := oracle.Config{LocalhostNodePorts: s.NodePorts.needsLocalhost(),
		LoopbackProxy: s.NodePorts == OnLoopbackByProxy,
		NodePortPrimary: s.NodePorts == OnPrimaryAndOtherIPv4 || s.NodePorts == OnPrimaryAndLocalhost ||
			s.NodePorts == OnLoopbackByProxy}
	for _, f := range families {
		host := network.PlanOf(f).HostAddresses()
		c.HostAddresses = append(c.HostAddresses, host...)
		switch {
		case s.NodePorts == OnNodeIPs:
			c.NodePortCIDRs = append(c.NodePortCIDRs, network.HostPrefix(host[0]))
		case s.NodePorts == OnPrimaryAndLocalhost, s.NodePorts == OnLocalhostAlone, s.NodePorts == OnLoopbackByProxy:
			c.NodePortCIDRs = append(c.NodePortCIDRs, f.Loopback())
		case (s.NodePorts == OnOtherIPv4Only || s.NodePorts == OnPrimaryAndOtherIPv4) && f == model.IPv4:
			c.NodePortCIDRs = append(c.NodePortCIDRs, network.PlanOf(f).ToOtherNode)
		}
	}
	return c
}
