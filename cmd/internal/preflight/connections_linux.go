package preflight

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// loopbackConnections counts the tracked connections to loopback addresses, by their original destination.
func loopbackConnections() (map[connection]int, error) {
	protocols := map[uint8]model.Protocol{unix.IPPROTO_TCP: model.TCP, unix.IPPROTO_UDP: model.UDP,
		unix.IPPROTO_SCTP: model.SCTP}
	count := map[connection]int{}
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, fmt.Errorf("list tracked connections (root needs CAP_NET_ADMIN, the kernel nf_conntrack): %w", err)
		}
		for _, f := range flows {
			to, _ := netip.AddrFromSlice(f.Forward.DstIP)
			if p, ok := protocols[f.Forward.Protocol]; ok && to.Unmap().IsLoopback() {
				count[connection{p, netip.AddrPortFrom(to.Unmap(), f.Forward.DstPort)}]++
			}
		}
	}
	return count, nil
}
