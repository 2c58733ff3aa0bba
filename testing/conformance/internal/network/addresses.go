package network

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
)

// The sources and destinations of traffic. Each pod of the node under test has its own network namespace; the pods of
// other nodes are addresses in their node's namespace, which looks the same from outside. remote-3 is on a separate
// node, so that replies to it and its node always return through the node under test. far-pod is behind a link of
// other-node with a smaller MTU than all other links: FarMTU.
const (
	LocalPod1  = "local-1"
	LocalPod2  = "local-2"
	LocalPod3  = "local-3"
	TheNode    = "node" // the node under test
	RemotePod1 = "remote-1"
	RemotePod2 = "remote-2"
	RemotePod3 = "remote-3"
	FarPod     = "far-pod"
	OtherNode  = "other-node" // of remote-1 and remote-2
	ThirdNode  = "third-node" // of remote-3
	Client     = "client"     // outside the cluster
	Client2    = "client-2"
)

// Host is a node, a pod or a client of the test network.
type Host struct {
	Name string
	Kind oracle.SourceKind
	// V4 and V6 are its addresses.
	V4, V6 netip.Addr
}

// Addr returns the host's address of a family.
func (h Host) Addr(f model.Family) netip.Addr {
	if f == model.IPv6 {
		return h.V6
	}
	return h.V4
}

// Hosts returns all hosts, in a fixed order.
func Hosts() []Host {
	parse := netip.MustParseAddr
	return []Host{
		{LocalPod1, oracle.LocalPod, parse("10.180.1.11"), parse("fd00:180:1::11")},
		{LocalPod2, oracle.LocalPod, parse("10.180.1.12"), parse("fd00:180:1::12")},
		{LocalPod3, oracle.LocalPod, parse("10.180.1.13"), parse("fd00:180:1::13")},
		{TheNode, oracle.Node, parse("172.30.3.1"), parse("fd00:30:3::1")},
		{RemotePod1, oracle.RemotePod, parse("10.180.2.11"), parse("fd00:180:2::11")},
		{RemotePod2, oracle.RemotePod, parse("10.180.2.12"), parse("fd00:180:2::12")},
		{RemotePod3, oracle.RemotePod, parse("10.180.3.13"), parse("fd00:180:3::13")},
		{FarPod, oracle.RemotePod, parse("10.180.2.14"), parse("fd00:180:2::14")},
		{OtherNode, oracle.External, parse("172.30.2.2"), parse("fd00:30:2::2")},
		{ThirdNode, oracle.External, parse("172.30.5.2"), parse("fd00:30:5::2")},
		{Client, oracle.External, parse("203.0.113.10"), parse("2001:db8:c::10")},
		{Client2, oracle.External, parse("203.0.113.11"), parse("2001:db8:c::11")},
	}
}

// HostNamed returns a host. It panics on an unknown name, because names come only from tables.
func HostNamed(name string) Host {
	for _, h := range Hosts() {
		if h.Name == name {
			return h
		}
	}
	panic("network: no host is named " + name)
}

// Plan is the address plan of one family.
type Plan struct {
	// LocalPods and AllPods are the pod address ranges of the node under test and of the whole cluster.
	LocalPods, AllPods netip.Prefix
	// gateway is the address of the local pods' bridge.
	gateway netip.Addr
	// Clients is the address range of the external client, which owns every address in it.
	Clients netip.Prefix
	// The networks of the links between the node and its neighbours. The node has the first address.
	ToOtherNode, toThirdNode, toClient, toOutside netip.Prefix
}

// PlanOf returns the address plan of a family.
func PlanOf(f model.Family) Plan {
	prefix := netip.MustParsePrefix
	if f == model.IPv6 {
		return Plan{
			LocalPods: prefix("fd00:180:1::/64"), AllPods: prefix("fd00:180::/32"),
			gateway:     netip.MustParseAddr("fd00:180:1::1"),
			Clients:     prefix("2001:db8:c::/64"),
			ToOtherNode: prefix("fd00:30:2::/64"), toThirdNode: prefix("fd00:30:5::/64"),
			toClient: prefix("fd00:30:3::/64"), toOutside: prefix("fd00:30:4::/64"),
		}
	}
	return Plan{
		LocalPods: prefix("10.180.1.0/24"), AllPods: prefix("10.180.0.0/16"),
		gateway:     netip.MustParseAddr("10.180.1.1"),
		Clients:     prefix("203.0.113.0/24"),
		ToOtherNode: prefix("172.30.2.0/24"), toThirdNode: prefix("172.30.5.0/24"), toClient: prefix("172.30.3.0/24"),
		toOutside: prefix("172.30.4.0/24"),
	}
}

// HostAddresses returns the addresses of the node's interfaces, the primary one first.
func (p Plan) HostAddresses() []netip.Addr {
	return []netip.Addr{Nth(p.toClient, 1), Nth(p.ToOtherNode, 1), Nth(p.toThirdNode, 1), Nth(p.toOutside, 1),
		p.gateway}
}

// FarMTU is the MTU of the link from other-node to far-pod, in that direction only.
const FarMTU = 1300

// BridgeName is the node's interface to the local pods.
const BridgeName = "kpl-br0"

// ClusterIPs returns the range of cluster IPs. No host in the network has one of these addresses.
func ClusterIPs(f model.Family) netip.Prefix {
	if f == model.IPv6 {
		return netip.MustParsePrefix("fd00:190::/112")
	}
	return netip.MustParsePrefix("10.190.0.0/16")
}

// HostPrefix returns the prefix of a single address.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// Nth returns the n-th address of a range.
func Nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	last := len(b) - 1
	for carry := n; carry > 0 && last >= 0; last-- {
		carry += int(b[last])
		b[last] = byte(carry)
		carry >>= 8
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok || !p.Contains(addr) {
		panic(fmt.Sprintf("network: %v has no address number %d", p, n))
	}
	return addr
}

// The ports on which the servers of pods and nodes listen, for each protocol.
const (
	ServerPort  = 8080
	ServerPort2 = 8081
	ServerPort3 = 8082
)

// Clients use no source port from FirstReservedPort up to, but not including, EndOfReservedPorts.
const (
	FirstReservedPort  = 30000
	EndOfReservedPorts = 40000
)

// ServerPorts returns all ports on which servers listen.
func ServerPorts() []uint16 { return []uint16{ServerPort, ServerPort2, ServerPort3} }

// Wildcard returns the unspecified address of a family with a port.
func Wildcard(f model.Family, port uint16) netip.AddrPort {
	if f == model.IPv6 {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	return netip.AddrPortFrom(netip.IPv4Unspecified(), port)
}

// ManyPodsPort is the TCP port of the pods of Network.ServeManyPods.
const ManyPodsPort = 8180

// ManyPods returns the pod range of other-node for large clusters. ServeManyPods starts their servers.
func ManyPods(f model.Family) netip.Prefix {
	if f == model.IPv6 {
		return netip.MustParsePrefix("fd00:200::/64")
	}
	return netip.MustParsePrefix("10.200.0.0/13")
}
