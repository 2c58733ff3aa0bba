package hostaddr

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// prefix is a parsed CIDR whose IP keeps its host part.
func prefix(t *testing.T, cidr string) *net.IPNet {
	t.Helper()
	ip, n, err := net.ParseCIDR(cidr)
	require.NoError(t, err)
	n.IP = ip
	return n
}

// address is an address that is usable at once.
func address(t *testing.T, cidr string) *netlink.Addr {
	t.Helper()
	return &netlink.Addr{IPNet: prefix(t, cidr), Flags: unix.IFA_F_NODAD}
}

// addPair adds the interface kpl-eth and its peer, both down.
func addPair(ns *testkit.Namespace, peer string) {
	ns.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kpl-eth"}, PeerName: peer})
	})
}

// withLink calls a function in the namespace, with one of its interfaces.
func withLink(t *testing.T, ns *testkit.Namespace, name string, f func(netlink.Link) error) {
	t.Helper()
	ns.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		return f(link)
	})
}

// inBackground calls a function until the test ends it, or ends.
func inBackground(t *testing.T, f func(context.Context) error) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f(ctx) }()
	return func() {
		t.Helper()
		cancel()
		require.NoError(t, <-ended)
	}
}

// watched returns the host's addresses at each call of Watch.
func watched(t *testing.T, host nodeaddr.Host) (calls <-chan []nodeaddr.HostAddress, end func()) {
	t.Helper()
	lists := make(chan []nodeaddr.HostAddress, 1000)
	return lists, inBackground(t, func(ctx context.Context) error {
		return host.Watch(ctx, func() {
			list, err := host.Addresses()
			require.NoError(t, err)
			lists <- list
		})
	})
}
