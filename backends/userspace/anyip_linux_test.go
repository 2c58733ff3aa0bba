package userspace_test

import (
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
