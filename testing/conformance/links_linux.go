package conformance

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
)

func anywhere(f model.Family) netip.Prefix {
	if f == model.IPv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// The functions below act on the network namespace of the calling thread.

func linkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return netlink.LinkSetUp(link)
}

func addAddr(link string, addr netip.Prefix) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	a := &netlink.Addr{IPNet: ipNet(addr)}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := netlink.AddrAdd(l, a); err != nil {
		return fmt.Errorf("address %v on %s: %w", addr, link, err)
	}
	return awaitLocal(addr.Addr())
}

// awaitLocal waits until an address works: the kernel adds the route to an IPv6 address after the address.
func awaitLocal(addr netip.Addr) error {
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		var routes []netlink.Route
		routes, err = netlink.RouteGet(addr.AsSlice())
		if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
	}
	return fmt.Errorf("address %v does not become local: %w", addr, err)
}

// rtoMin is the minimum time, in milliseconds, after which TCP retransmits a segment. By default it is 200; on a
// machine that stalls for so long, segments would be retransmitted that were not lost.
const rtoMin = 2000

func addRoute(link string, to netip.Prefix, via, source netip.Addr) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to), Src: source.AsSlice(), RtoMin: rtoMin,
		RtoMinLock: true}
	if via.IsValid() {
		r.Gw = via.AsSlice()
	} else {
		r.Scope = netlink.SCOPE_LINK
	}
	if err := netlink.RouteAdd(r); err != nil {
		return fmt.Errorf("route to %v by %s: %w", to, link, err)
	}
	return nil
}

// addNarrowRoute adds a route to the network of a link, with an MTU that applies whatever the link allows.
func addNarrowRoute(link string, to netip.Prefix, mtu int) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(to), Scope: netlink.SCOPE_LINK, MTU: mtu, MTULock: true}
	if err := netlink.RouteAdd(r); err != nil {
		return fmt.Errorf("route to %v by %s: %w", to, link, err)
	}
	return nil
}

func addNeighbour(link string, addr netip.Addr, mac net.HardwareAddr) error {
	l, err := netlink.LinkByName(link)
	if err != nil {
		return fmt.Errorf("link %s: %w", link, err)
	}
	neigh := &netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(),
		HardwareAddr: mac}
	if err := netlink.NeighSet(neigh); err != nil {
		return fmt.Errorf("neighbour %v on %s: %w", addr, link, err)
	}
	return nil
}

func hardwareAddr(ns *namespace, link string) (mac net.HardwareAddr, err error) {
	err = ns.Do(func() error {
		l, err := netlink.LinkByName(link)
		if err != nil {
			return fmt.Errorf("link %s: %w", link, err)
		}
		mac = l.Attrs().HardwareAddr
		return nil
	})
	return mac, err
}
