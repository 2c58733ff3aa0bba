package hostaddr

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Addresses come from interfaces and from local routes.
func TestLocalFollowsTheKernel(t *testing.T) {
	ns := testkit.NewNamespace(t)
	changed := make(chan nodeaddr.Addresses, 100)
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{Host: &Local{NetNS: ns.FD()},
		Changed: func(a nodeaddr.Addresses) { changed <- a }})
	require.NoError(t, err)
	require.Empty(t, tracker.Addresses().IPs, "a new namespace has none")
	defer inBackground(t, tracker.Run)()
	waitFor := func(want ...string) {
		t.Helper()
		deadline := time.After(2 * time.Minute)
		for a := tracker.Addresses(); ; {
			if (nodeaddr.Addresses{IPs: a.IPs}).Equal(nodeaddr.Addresses{IPs: ips(want...)}) {
				return
			}
			select {
			case a = <-changed:
			case <-deadline:
				t.Fatalf("there are %v and no %v", tracker.Addresses(), want)
			}
		}
	}
	do := func(f func(eth netlink.Link) error) { t.Helper(); withLink(t, ns, "kpl-eth", f) }
	route := func(eth netlink.Link, cidr string) *netlink.Route {
		return &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: prefix(t, cidr), Table: unix.RT_TABLE_LOCAL,
			Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Protocol: 66}
	}
	addPair(ns, "kpl-peer")
	do(netlink.LinkSetUp)
	do(func(eth netlink.Link) error { return netlink.AddrAdd(eth, address(t, "192.0.2.1/24")) })
	waitFor("192.0.2.1")
	do(func(eth netlink.Link) error { return netlink.RouteAdd(route(eth, "203.0.113.9/32")) })
	waitFor("192.0.2.1", "203.0.113.9")
	do(func(eth netlink.Link) error { return netlink.AddrAdd(eth, address(t, "2001:db8::1/64")) })
	waitFor("192.0.2.1", "203.0.113.9", "2001:db8::1")
	do(func(eth netlink.Link) error {
		for _, cidr := range []string{"198.51.100.0/24", "2001:db8:5::9/128"} { // one is a range
			if err := netlink.RouteAdd(route(eth, cidr)); err != nil {
				return err
			}
		}
		return nil
	})
	waitFor("192.0.2.1", "203.0.113.9", "2001:db8::1", "2001:db8:5::9")
	do(func(eth netlink.Link) error { return netlink.RouteDel(route(eth, "203.0.113.9/32")) })
	waitFor("192.0.2.1", "2001:db8::1", "2001:db8:5::9")
	do(func(eth netlink.Link) error { return netlink.AddrDel(eth, address(t, "192.0.2.1/24")) })
	waitFor("2001:db8::1", "2001:db8:5::9")
	do(netlink.LinkDel)
	waitFor()
}

// An IPv6 address is not usable while the kernel looks for a duplicate; when it is, that is a change.
func TestAnAddressIsLocalOnceItIsUsable(t *testing.T) {
	ns := testkit.NewNamespace(t)
	host := &Local{NetNS: ns.FD()}
	calls, end := watched(t, host)
	<-calls
	has := func(list []nodeaddr.HostAddress) bool {
		for _, h := range list {
			if h.Addr == ips("2001:db8::1")[0] {
				return true
			}
		}
		return false
	}
	addPair(ns, "kpl-peer")
	withLink(t, ns, "kpl-eth", func(eth netlink.Link) error { // the interface is down
		return netlink.AddrAdd(eth, &netlink.Addr{IPNet: prefix(t, "2001:db8::1/64")})
	})
	list, err := host.Addresses()
	require.NoError(t, err)
	require.False(t, has(list), "tentative")
	for _, name := range []string{"kpl-peer", "kpl-eth"} {
		withLink(t, ns, name, netlink.LinkSetUp)
	}
	for !has(<-calls) {
	}
	end()
}

// Other routes are no reason to read the local ones.
func TestLocalIgnoresOtherRoutes(t *testing.T) {
	ns := testkit.NewNamespace(t)
	addPair(ns, "kpl-peer")
	withLink(t, ns, "kpl-eth", netlink.LinkSetUp)
	host := &Local{NetNS: ns.FD()}
	calls, end := watched(t, host)
	before := len(<-calls)
	withLink(t, ns, "kpl-eth", func(eth netlink.Link) error {
		for i := range 100 {
			r := &netlink.Route{LinkIndex: eth.Attrs().Index, Scope: unix.RT_SCOPE_LINK,
				Dst: &net.IPNet{IP: net.IPv4(10, 0, 0, byte(i)).To4(), Mask: net.CIDRMask(32, 32)}}
			if err := netlink.RouteAdd(r); err != nil {
				return err
			}
		}
		return netlink.AddrAdd(eth, &netlink.Addr{IPNet: prefix(t, "192.0.2.1/32")})
	})
	require.Len(t, <-calls, before+1, "the first news is of an address")
	end()
	require.Empty(t, calls)
}
