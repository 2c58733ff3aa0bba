package userspace_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// While the loopback interface is down there are no IPv6 routes to it.
func TestALocalRouteThatFailsDoesNotAffectOthers(t *testing.T) {
	testns.Enter(t)
	a, err := userspace.NewAnyIP()
	require.NoError(t, err)
	defer a.Close()
	refused, fine := netip.MustParseAddr("fd96::1"), netip.MustParseAddr("10.96.0.1")
	require.ErrorContains(t, a.Update(t.Context(), model.IPv4, false, []netip.Addr{refused, fine}, nil), "fd96::1")
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4,
		&netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: 75}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	require.NoError(t, err)
	require.Len(t, routes, 1)
	assert.Equal(t, "10.96.0.1/32", routes[0].Dst.String())
}

// anyIPIn is an AnyIP in a network namespace with an address and a gateway.
func anyIPIn(t *testing.T, never ...netip.Prefix) *userspace.AnyIP {
	testns.Enter(t)
	require.NoError(t, configure("lo", ""))
	require.NoError(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "peer"}))
	require.NoError(t, configure("peer", ""))
	require.NoError(t, configure("eth0", "192.0.2.1/24"))
	require.NoError(t, configure("eth0", "2001:db8::1/64"))
	require.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("192.0.2.254")}))
	require.NoError(t, netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP("2001:db8::fe")}))
	a, err := userspace.NewAnyIP(never...)
	require.NoError(t, err)
	t.Cleanup(a.Close)
	return a
}

// Whoever lists them: a listener fails, so that the service port is named, and no packet comes here.
func TestGatewaysAndOthersAreNeverServed(t *testing.T) {
	a := anyIPIn(t, netip.MustParsePrefix("203.0.113.6/32"))
	list := func(addrs ...string) (all []netip.Addr) {
		for _, text := range addrs {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	served := func(f int) (all []string) {
		routes, err := netlink.RouteListFiltered(f, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: 75},
			netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		require.NoError(t, err)
		for _, r := range routes {
			all = append(all, r.Dst.String())
		}
		return all
	}
	require.NoError(t, a.Update(t.Context(), model.IPv4, true, list("192.0.2.254", "203.0.113.6", "203.0.113.9"), nil))
	require.NoError(t, a.Update(t.Context(), model.IPv6, true, list("2001:db8::fe", "2001:db8:1::9"), nil))
	require.NoError(t, a.Update(t.Context(), model.IPv4, false, list("192.0.2.254", "203.0.113.10"), nil))
	assert.Equal(t, []string{"203.0.113.9/32", "203.0.113.10/32"}, served(netlink.FAMILY_V4))
	assert.Equal(t, []string{"2001:db8:1::9/128"}, served(netlink.FAMILY_V6))
	config := net.ListenConfig{Control: a.Control}
	for _, at := range []string{"192.0.2.254:80", "203.0.113.6:443", "[2001:db8::fe]:80"} {
		_, err := config.Listen(t.Context(), "tcp", at)
		require.ErrorContains(t, err, "is a gateway of this node, or is never to be served")
	}
	l, err := config.Listen(t.Context(), "tcp", "203.0.113.9:80")
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

// What an earlier process took before it was a gateway goes at the next full Update.
func TestARouteToAGatewayIsRemoved(t *testing.T) {
	a := anyIPIn(t)
	next := netip.MustParseAddr("192.0.2.253")
	require.NoError(t, a.Update(t.Context(), model.IPv4, true, []netip.Addr{next}, nil))
	require.NoError(t, a.Update(t.Context(), model.IPv4, false, nil, []netip.Addr{next}))
	_, subnet, err := net.ParseCIDR("198.51.100.0/24")
	require.NoError(t, err)
	require.NoError(t, netlink.RouteAdd(&netlink.Route{Dst: subnet, Gw: next.AsSlice()}))
	require.NoError(t, a.Update(t.Context(), model.IPv4, true, []netip.Addr{next}, nil))
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4,
		&netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: 75}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	require.NoError(t, err)
	assert.Empty(t, routes)
}

// They need no route, and one would stay when the node loses the address.
func TestAddressesOfTheNodeGetNoRoute(t *testing.T) {
	a := anyIPIn(t)
	own, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("203.0.113.9")
	served := func() (all []string) {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4,
			&netlink.Route{Table: unix.RT_TABLE_LOCAL, Protocol: 75}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
		require.NoError(t, err)
		for _, r := range routes {
			all = append(all, r.Dst.String())
		}
		return all
	}
	require.NoError(t, a.Update(t.Context(), model.IPv4, true, []netip.Addr{own}, nil))
	require.NoError(t, a.Update(t.Context(), model.IPv4, false, []netip.Addr{own, other}, nil))
	assert.Equal(t, []string{"203.0.113.9/32"}, served())
	config := net.ListenConfig{Control: a.Control}
	l, err := config.Listen(t.Context(), "tcp", "192.0.2.1:80")
	require.NoError(t, err, "it is served")
	require.NoError(t, l.Close())

	require.NoError(t, configure("eth0", "203.0.113.9/32"))
	require.NoError(t, a.Update(t.Context(), model.IPv4, true, []netip.Addr{own, other}, nil))
	assert.Empty(t, served(), "one that the node has gained")
	link, err := netlink.LinkByName("eth0")
	require.NoError(t, err)
	require.NoError(t, netlink.AddrDel(link, &netlink.Addr{IPNet: netlink.NewIPNet(other.AsSlice())}))
	require.NoError(t, a.Update(t.Context(), model.IPv4, true, []netip.Addr{own, other}, nil))
	assert.Equal(t, []string{"203.0.113.9/32"}, served(), "one that it has lost")
}
