package localstate

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	netutils "k8s.io/utils/net"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// parseAddr reads an address as leniently as Kubernetes does (S5): leading zeros are decimal, and IPv4-mapped IPv6
// addresses are IPv4. White space and zones are not accepted.
func parseAddr(text string) (netip.Addr, error) {
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

// parsePrefix reads a CIDR as leniently as Kubernetes does (S5), white space around it included, and masks it.
func parsePrefix(text string) (netip.Prefix, error) {
	text = strings.TrimSpace(text)
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

// parseProtocol reads a protocol; an empty one is TCP (S11).
func parseProtocol(p corev1.Protocol) (model.Protocol, error) {
	switch p {
	case "", corev1.ProtocolTCP:
		return model.TCP, nil
	case corev1.ProtocolUDP:
		return model.UDP, nil
	case corev1.ProtocolSCTP:
		return model.SCTP, nil
	}
	return model.ParseProtocol(string(p))
}

// parsePort reads a port number that the API server may not have checked (S15).
func parsePort(n int32) (uint16, bool) { return uint16(n), n >= 1 && n <= 65535 }
