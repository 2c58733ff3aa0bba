// Package lenient parses IP addresses and CIDRs as leniently as Kubernetes (S5), and returns them in canonical form.
// All user input is parsed here, so that it is treated the same everywhere.
package lenient

import (
	"fmt"
	"net/netip"

	netutils "k8s.io/utils/net"
)

// Addr parses an address: numbers with leading zeros are decimal, and IPv4-mapped IPv6 addresses are IPv4. It accepts
// neither white space nor a zone.
func Addr(text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		ip, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
		if !ok {
			return netip.Addr{}, fmt.Errorf("%q is not an IP address", text)
		}
		addr = ip
	}
	if addr.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone", text)
	}
	return addr.Unmap(), nil
}

// Prefix parses a CIDR like Addr, and masks it. An IPv4-mapped CIDR is IPv4.
func Prefix(text string) (netip.Prefix, error) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		_, ipNet, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			return netip.Prefix{}, fmt.Errorf("%q is not a CIDR", text)
		}
		addr, _ := netip.AddrFromSlice(ipNet.IP)
		ones, _ := ipNet.Mask.Size()
		prefix = netip.PrefixFrom(addr, ones)
	}
	if prefix.Addr().Is4In6() && prefix.Bits() >= 96 {
		prefix = netip.PrefixFrom(prefix.Addr().Unmap(), prefix.Bits()-96)
	}
	return prefix.Masked(), nil
}
