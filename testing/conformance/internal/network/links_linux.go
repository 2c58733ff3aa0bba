package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/internal/localaddr"
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

// onLink calls f with a link of the namespace, on its thread.
func (ns *namespace) onLink(name string, f func(netlink.Link) error) error {
	return ns.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = f(link)
		}
		if err != nil {
			return fmt.Errorf("%s, link %s: %w", ns.name, name, err)
		}
		return nil
	})
}

func (ns *namespace) linkUp(name string) error { return ns.onLink(name, netlink.LinkSetUp) }

func (ns *namespace) addAddr(link string, addr netip.Prefix) error {
	return ns.onLink(link, func(l netlink.Link) error {
		a := &netlink.Addr{IPNet: ipNet(addr)}
		if addr.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("address %v: %w", addr, err)
		}
		return localaddr.Await(addr.Addr())
	})
}

// delAddr removes an address from a link, if it exists.
func (ns *namespace) delAddr(link string, addr netip.Prefix) error {
	return ns.onLink(link, func(l netlink.Link) error {
		err := netlink.AddrDel(l, &netlink.Addr{IPNet: ipNet(addr)})
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			return nil
		}
		return err
	})
}

// rtoMin is the minimum retransmission timeout of TCP, in milliseconds. With the default of 200, a machine that stalls
// that long would retransmit segments that were not lost.
const rtoMin = 2000

// addRoute adds a route through a link, via a router if that is valid.
func (ns *namespace) addRoute(link string, to netip.Prefix, via netip.Addr, r netlink.Route) error {
	return ns.onLink(link, func(l netlink.Link) error {
		r.LinkIndex, r.Dst, r.Gw = l.Attrs().Index, ipNet(to), via.AsSlice()
		if r.MTU == 0 {
			r.RtoMin, r.RtoMinLock = rtoMin, true
		}
		if !via.IsValid() && r.Scope == 0 {
			r.Scope = netlink.SCOPE_LINK
		}
		if err := netlink.RouteAdd(&r); err != nil {
			return fmt.Errorf("route to %v: %w", to, err)
		}
		return nil
	})
}

func (ns *namespace) addNeighbour(link string, addr netip.Addr, mac net.HardwareAddr) error {
	return ns.onLink(link, func(l netlink.Link) error {
		return netlink.NeighSet(&netlink.Neigh{LinkIndex: l.Attrs().Index, State: netlink.NUD_PERMANENT,
			IP: addr.AsSlice(), HardwareAddr: mac})
	})
}

func (ns *namespace) hardwareAddr(link string) (mac net.HardwareAddr, err error) {
	err = ns.onLink(link, func(l netlink.Link) error {
		mac = l.Attrs().HardwareAddr
		return nil
	})
	return mac, err
}
