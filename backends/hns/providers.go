package hns

import (
	"net/netip"
	"slices"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
)

// providers finds the node that has an address, in a network of thousands of nodes.
type providers struct {
	nodes   map[netip.Addr]bool
	subnets map[netip.Prefix]netip.Addr
	lengths []int // of the subnets' prefixes, the longest first
}

func newProviders(list []dp.RemoteSubnet) providers {
	p := providers{nodes: map[netip.Addr]bool{}, subnets: map[netip.Prefix]netip.Addr{}}
	for _, s := range list {
		p.nodes[s.Provider] = true
		p.subnets[s.Prefix.Masked()] = s.Provider
		p.lengths = append(p.lengths, s.Prefix.Bits())
	}
	slices.Sort(p.lengths)
	p.lengths = slices.Compact(p.lengths)
	slices.Reverse(p.lengths)
	return p
}

// of returns the node that has an address, or that the address belongs to; the zero Addr if there is none.
func (p *providers) of(addr netip.Addr) netip.Addr {
	if p.nodes[addr] {
		return addr
	}
	for _, n := range p.lengths {
		if subnet, err := addr.Prefix(n); err == nil {
			if node, ok := p.subnets[subnet]; ok {
				return node
			}
		}
	}
	return netip.Addr{}
}
