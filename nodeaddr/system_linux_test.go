package nodeaddr

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testns"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Addresses that come and go in a network namespace are noticed, without being asked for.
func TestSystemFollowsTheKernel(t *testing.T) {
	ns := testns.New(t)
	changed := make(chan Addresses, 100)
	tracker, err := NewTracker(Options{
		Host:    &System{NetNS: ns.FD(), ExcludeInterfaces: []string{"kpl-services"}},
		Changed: func(a Addresses) { changed <- a },
	})
	require.NoError(t, err)
	require.Empty(t, tracker.Addresses().IPs, "a new namespace has none")
	<-changed // that every address is chosen
	waitFor := func(want ...string) {
		t.Helper()
		deadline := time.After(2 * time.Minute)
		for {
			select {
			case a := <-changed:
				if a.Equal(Addresses{All: model.BothFamilies, IPs: ips(want...)}) {
					return
				}
			case <-deadline:
				t.Fatalf("there are %v and no %v", tracker.Addresses(), want)
			}
		}
	}
	address := func(cidr string) *netlink.Addr {
		ip, n, err := net.ParseCIDR(cidr)
		require.NoError(t, err)
		n.IP = ip
		return &netlink.Addr{IPNet: n, Flags: 0x02 /* IFA_F_NODAD */}
	}
	do := func(f func(eth netlink.Link) error) {
		ns.Do(func() error {
			eth, err := netlink.LinkByName("kpl-eth")
			if err != nil {
				return err
			}
			return f(eth)
		})
	}
	ns.Do(func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kpl-eth"}, PeerName: "kpl-services"}
		if err := netlink.LinkAdd(pair); err != nil {
			return err
		}
		services, err := netlink.LinkByName("kpl-services")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(services, address("10.96.0.1/32"))
	})
	do(func(eth netlink.Link) error { return netlink.AddrAdd(eth, address("192.0.2.1/24")) })
	require.Empty(t, tracker.Addresses().IPs, "it does not follow them yet")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- tracker.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	waitFor("192.0.2.1")
	do(func(eth netlink.Link) error { return netlink.AddrAdd(eth, address("2001:db8::1/64")) })
	waitFor("192.0.2.1", "2001:db8::1")
	// A point-to-point address is our end of it.
	do(func(eth netlink.Link) error {
		a := address("192.0.2.7/32")
		a.Peer = address("192.0.2.8/32").IPNet
		return netlink.AddrAdd(eth, a)
	})
	waitFor("192.0.2.1", "192.0.2.7", "2001:db8::1")
	do(func(eth netlink.Link) error { return netlink.AddrDel(eth, address("192.0.2.1/24")) })
	waitFor("192.0.2.7", "2001:db8::1")
	do(netlink.LinkDel)
	waitFor()
}

// A backend that puts thousands of addresses on its own interface is not told of each.
func TestSystemLeavesOutExcludedInterfaces(t *testing.T) {
	ns := testns.New(t)
	host := &System{NetNS: ns.FD(), ExcludeInterfaces: []string{"kpl-services"}}
	add := func(link, cidr string) {
		ns.Do(func() error {
			l, err := netlink.LinkByName(link)
			require.NoError(t, err)
			a, err := netlink.ParseAddr(cidr)
			require.NoError(t, err)
			return netlink.AddrAdd(l, a)
		})
	}
	ns.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kpl-eth"}, PeerName: "kpl-services"})
	})
	calls := make(chan []HostAddress, 100)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- host.Watch(ctx, func() {
			list, err := host.Addresses()
			require.NoError(t, err)
			calls <- list
		})
	}()
	require.Empty(t, <-calls)
	for _, cidr := range []string{"10.96.0.1/32", "10.96.0.2/32", "10.96.0.3/32"} {
		add("kpl-services", cidr)
	}
	add("kpl-eth", "192.0.2.1/24")
	require.Equal(t, on("kpl-eth", "192.0.2.1"), <-calls, "the first news is of another interface")
	cancel()
	require.NoError(t, <-ended)
	require.Empty(t, calls)
}
