package localaddr

import (
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// A socket can be bound to each address as soon as Await returns.
func TestAddressesAreUsable(t *testing.T) {
	testkit.EnterNamespace(t)
	lo, err := netlink.LinkByName("lo")
	require.NoError(t, err)
	require.NoError(t, netlink.LinkSetUp(lo))
	for _, text := range []string{"192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8::3"} {
		addr := netip.MustParseAddr(text)
		ones := net.CIDRMask(addr.BitLen(), addr.BitLen())
		require.NoError(t, netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: addr.AsSlice(), Mask: ones}}))
		require.NoError(t, Await(addr))
		routes, err := netlink.RouteGet(addr.AsSlice())
		require.NoError(t, err)
		require.Equal(t, unix.RTN_LOCAL, routes[0].Type)
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", netip.AddrPortFrom(addr, 0).String())
		require.NoError(t, err, addr)
		require.NoError(t, listener.Close())
	}
}
