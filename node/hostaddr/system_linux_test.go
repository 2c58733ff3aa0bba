package hostaddr

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Addresses that are added and removed in a network namespace are noticed without polling.
func TestSystemFollowsTheKernel(t *testing.T) {
	ns := testkit.NewNamespace(t)
	changed := make(chan nodeaddr.Addresses, 100)
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{
		Host:    &System{NetNS: ns.FD(), ExcludeInterfaces: []string{"kpl-services"}},
		Changed: func(a nodeaddr.Addresses) { changed <- a },
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
				if a.Equal(nodeaddr.Addresses{All: model.BothFamilies, IPs: ips(want...)}) {
					return
				}
			case <-deadline:
				t.Fatalf("there are %v and no %v", tracker.Addresses(), want)
			}
		}
	}
	do := func(f func(eth netlink.Link) error) { t.Helper(); withLink(t, ns, "kpl-eth", f) }
	addPair(ns, "kpl-services")
	withLink(t, ns, "kpl-services", func(services netlink.Link) error {
		return netlink.AddrAdd(services, address(t, "10.96.0.1/32"))
	})
	do(func(eth netlink.Link) error { return netlink.AddrAdd(eth, address(t, "192.0.2.1/24")) })
	require.Empty(t, tracker.Addresses().IPs, "it does not follow them yet")
	defer inBackground(t, tracker.Run)()
	waitFor("192.0.2.1")
	do(func(eth netlink.Link) error { return netlink.AddrAdd(eth, address(t, "2001:db8::1/64")) })
	waitFor("192.0.2.1", "2001:db8::1")
	// A point-to-point address is our end of it.
	do(func(eth netlink.Link) error {
		a := address(t, "192.0.2.7/32")
		a.Peer = address(t, "192.0.2.8/32").IPNet
		return netlink.AddrAdd(eth, a)
	})
	waitFor("192.0.2.1", "192.0.2.7", "2001:db8::1")
	do(func(eth netlink.Link) error { return netlink.AddrDel(eth, address(t, "192.0.2.1/24")) })
	waitFor("192.0.2.7", "2001:db8::1")
	do(netlink.LinkDel)
	waitFor()
}

// Watch does not report the addresses that a backend adds to its own interface.
func TestSystemLeavesOutExcludedInterfaces(t *testing.T) {
	ns := testkit.NewNamespace(t)
	host := &System{NetNS: ns.FD(), ExcludeInterfaces: []string{"kpl-services"}}
	add := func(link, cidr string) {
		withLink(t, ns, link, func(l netlink.Link) error {
			return netlink.AddrAdd(l, &netlink.Addr{IPNet: prefix(t, cidr)})
		})
	}
	addPair(ns, "kpl-services")
	calls, end := watched(t, host)
	require.Empty(t, <-calls)
	for _, cidr := range []string{"10.96.0.1/32", "10.96.0.2/32", "10.96.0.3/32"} {
		add("kpl-services", cidr)
	}
	add("kpl-eth", "192.0.2.1/24")
	require.Equal(t, []nodeaddr.HostAddress{{Addr: ips("192.0.2.1")[0], Interface: "kpl-eth"}}, <-calls, "the "+
		"first news is of another interface")
	end()
	require.Empty(t, calls)
}

func ips(list ...string) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range list {
		addrs = append(addrs, netip.MustParseAddr(text))
	}
	return addrs
}
