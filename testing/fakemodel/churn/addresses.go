package churn

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
)

// The address plan of a default topology and of all services:
//
//	nodes           172.16.0.0/12   fd18::/64
//	pods            10.128.0.0/9    fd44:0:0:node::/64
//	cluster IPs     10.96.0.0/12    fd96::/108
//	external IPs    198.18.0.0/15   2001:db8:5::/64, load-balancer VIPs too

func v4(a, b byte, n int) netip.Addr {
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], uint32(a)<<24|uint32(b)<<16+uint32(n))
	return netip.AddrFrom4(addr)
}

func v6(first, second, third, node uint16, n int) netip.Addr {
	var addr [16]byte
	binary.BigEndian.PutUint16(addr[0:], first)
	binary.BigEndian.PutUint16(addr[2:], second)
	binary.BigEndian.PutUint16(addr[4:], third)
	binary.BigEndian.PutUint16(addr[6:], node)
	binary.BigEndian.PutUint64(addr[8:], uint64(n))
	return netip.AddrFrom16(addr)
}

// dual returns both addresses, or only the first one if the cluster is not dual-stack.
func (o Options) dual(a, b netip.Addr) []netip.Addr {
	if o.DualStack {
		return []netip.Addr{a, b}
	}
	return []netip.Addr{a}
}

func (o Options) clusterIPs(n int) []netip.Addr {
	return o.dual(v4(10, 96, 16+n), v6(0xfd96, 0, 0, 0, 16+n))
}

func (o Options) externalIPs(n int) []netip.Addr {
	return o.dual(v4(198, 18, 16+n), v6(0x2001, 0xdb8, 5, 0, 16+n))
}

// serviceCIDRs returns the ranges of the cluster IPs.
func (o Options) serviceCIDRs() []string {
	if o.DualStack {
		return []string{"10.96.0.0/12", "fd96::/108"}
	}
	return []string{"10.96.0.0/12"}
}

// defaultNode returns node i, without its pods.
func (o Options) defaultNode(i int) Node {
	node := Node{Name: fmt.Sprintf("n%d", i+1), IPs: o.dual(v4(172, 16, i+1), v6(0xfd18, 0, 0, 0, i+1))}
	if o.Zones > 0 {
		node.Zone = zoneName(i % o.Zones)
	}
	size := o.podsPerNode()
	node.PodCIDRs = []netip.Prefix{netip.PrefixFrom(v4(10, 128, i*size), 33-bits.Len(uint(size)))}
	if o.DualStack {
		node.PodCIDRs = append(node.PodCIDRs, netip.PrefixFrom(v6(0xfd44, 0, 0, uint16(i), 0), 64))
	}
	return node
}

// podIPs returns the addresses of place k of node i in a default topology.
func (o Options) podIPs(i, k int) []netip.Addr {
	return o.dual(v4(10, 128, i*o.podsPerNode()+k+2), v6(0xfd44, 0, 0, uint16(i), k+2))
}

func zoneName(i int) string { return fmt.Sprintf("z%d", i+1) }

func texts[T fmt.Stringer](values []T) []string {
	list := make([]string, len(values))
	for i, v := range values {
		list[i] = v.String()
	}
	return list
}
