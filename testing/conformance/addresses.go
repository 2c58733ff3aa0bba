package conformance

import (
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// The places that traffic comes from and goes to. Each pod of the node under test has its own network namespace; the
// pods of other nodes are addresses in their node's namespace, which makes no difference from outside. remote-3 is on a
// separate node, so that replies to it and to its node always return through the node under test. far-pod is behind a
// link from its node, other-node, with a smaller MTU than all others: farMTU.
const (
	localPod1  = "local-1"
	localPod2  = "local-2"
	localPod3  = "local-3"
	theNode    = "node" // the node under test
	remotePod1 = "remote-1"
	remotePod2 = "remote-2"
	remotePod3 = "remote-3"
	farPod     = "far-pod"
	otherNode  = "other-node" // of remote-1 and remote-2
	thirdNode  = "third-node" // of remote-3
	client     = "client"     // outside the cluster
	client2    = "client-2"
)

// place is a host or a pod of the test network.
type place struct {
	name string
	kind oracle.SourceKind
	// v4 and v6 are its addresses.
	v4, v6 netip.Addr
}

func (p place) addr(f model.Family) netip.Addr {
	if f == model.IPv6 {
		return p.v6
	}
	return p.v4
}

// places lists all places, always in the same order.
func places() []place {
	parse := netip.MustParseAddr
	return []place{
		{localPod1, oracle.LocalPod, parse("10.180.1.11"), parse("fd00:180:1::11")},
		{localPod2, oracle.LocalPod, parse("10.180.1.12"), parse("fd00:180:1::12")},
		{localPod3, oracle.LocalPod, parse("10.180.1.13"), parse("fd00:180:1::13")},
		{theNode, oracle.Node, parse("172.30.3.1"), parse("fd00:30:3::1")},
		{remotePod1, oracle.RemotePod, parse("10.180.2.11"), parse("fd00:180:2::11")},
		{remotePod2, oracle.RemotePod, parse("10.180.2.12"), parse("fd00:180:2::12")},
		{remotePod3, oracle.RemotePod, parse("10.180.3.13"), parse("fd00:180:3::13")},
		{farPod, oracle.RemotePod, parse("10.180.2.14"), parse("fd00:180:2::14")},
		{otherNode, oracle.External, parse("172.30.2.2"), parse("fd00:30:2::2")},
		{thirdNode, oracle.External, parse("172.30.5.2"), parse("fd00:30:5::2")},
		{client, oracle.External, parse("203.0.113.10"), parse("2001:db8:c::10")},
		{client2, oracle.External, parse("203.0.113.11"), parse("2001:db8:c::11")},
	}
}

// placeNamed returns a place, or panics: names come only from the tables of this package.
func placeNamed(name string) place {
	for _, p := range places() {
		if p.name == name {
			return p
		}
	}
	panic("conformance: no place is named " + name)
}

// plan is the address plan of one family.
type plan struct {
	family model.Family
	// localPods and allPods are where pods get their addresses: on the node under test, and in the whole cluster.
	localPods, allPods netip.Prefix
	// gateway is the address of the bridge that the local pods are behind.
	gateway netip.Addr
	// clients is the range of the client outside, which has every address in it.
	clients netip.Prefix
	// services is the range of the cluster IPs; the other two are those of external IPs and VIPs.
	services, externalIPs, vips netip.Prefix
	// links are the networks between the node and its neighbours. The node has the first address.
	toOtherNode, toThirdNode, toClient, toOutside netip.Prefix
}

func planOf(f model.Family) plan {
	prefix := netip.MustParsePrefix
	if f == model.IPv6 {
		return plan{
			family: f, localPods: prefix("fd00:180:1::/64"), allPods: prefix("fd00:180::/32"),
			gateway:  netip.MustParseAddr("fd00:180:1::1"),
			clients:  prefix("2001:db8:c::/64"),
			services: prefix("fd00:190::/112"), externalIPs: prefix("2001:db8:e::/64"),
			vips:        prefix("2001:db8:1b::/64"),
			toOtherNode: prefix("fd00:30:2::/64"), toThirdNode: prefix("fd00:30:5::/64"),
			toClient: prefix("fd00:30:3::/64"), toOutside: prefix("fd00:30:4::/64"),
		}
	}
	return plan{
		family: f, localPods: prefix("10.180.1.0/24"), allPods: prefix("10.180.0.0/16"),
		gateway:  netip.MustParseAddr("10.180.1.1"),
		clients:  prefix("203.0.113.0/24"),
		services: prefix("10.190.0.0/16"), externalIPs: prefix("192.0.2.0/24"), vips: prefix("198.51.100.0/24"),
		toOtherNode: prefix("172.30.2.0/24"), toThirdNode: prefix("172.30.5.0/24"), toClient: prefix("172.30.3.0/24"),
		toOutside: prefix("172.30.4.0/24"),
	}
}

// hostAddresses are the addresses of the node's interfaces, the node's own first.
func (p plan) hostAddresses() []netip.Addr {
	return []netip.Addr{nth(p.toClient, 1), nth(p.toOtherNode, 1), nth(p.toThirdNode, 1), nth(p.toOutside, 1),
		p.gateway}
}

// farMTU is the MTU of the link from other-node to far-pod, in this direction only.
const farMTU = 1300

// bridgeName is the interface on the node that the local pods are behind.
const bridgeName = "kpl-br0"

func hostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// nth returns the address with that number in a range.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	last := len(b) - 1
	for carry := n; carry > 0 && last >= 0; last-- {
		carry += int(b[last])
		b[last] = byte(carry)
		carry >>= 8
	}
	addr, ok := netip.AddrFromSlice(b)
	if !ok || !p.Contains(addr) {
		panic(fmt.Sprintf("conformance: %v has no address number %d", p, n))
	}
	return addr
}

// Ports that the servers in pods and on nodes listen on, for each protocol.
const (
	serverPort  = 8080
	serverPort2 = 8081
	serverPort3 = 8082
)

func serverPorts() []uint16 { return []uint16{serverPort, serverPort2, serverPort3} }

// Node ports begin here.
const firstNodePort = 30000
