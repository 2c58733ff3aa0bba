package health

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/hostaddr"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// A client asks a node for the health check of a Service, at the node's own address and at VIPs that come and go.
func TestHealthChecksOverTheNetwork(t *testing.T) {
	const own, vip, routed, vip6 = "192.0.2.1", "203.0.113.9", "203.0.113.10", "2001:db8:9::9"
	node, client := testkit.NewNamespace(t), testkit.NewNamespace(t)
	ipNet := func(cidr string) *net.IPNet {
		ip, n, err := net.ParseCIDR(cidr)
		require.NoError(t, err)
		n.IP = ip
		return n
	}
	addr := func(cidr string) *netlink.Addr { return &netlink.Addr{IPNet: ipNet(cidr), Flags: unix.IFA_F_NODAD} }
	link := func(ns *testkit.Namespace, f func(netlink.Link) error) {
		t.Helper()
		ns.Do(func() error {
			eth, err := netlink.LinkByName("kpl-eth")
			if err != nil {
				return err
			}
			return f(eth)
		})
	}
	node.Do(func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "kpl-eth"}, PeerName: "kpl-eth",
			PeerNamespace: netlink.NsFd(client.FD())})
	})
	for ns, cidrs := range map[*testkit.Namespace][]string{node: {own + "/24", "2001:db8::1/64"},
		client: {"192.0.2.2/24", "2001:db8::2/64"}} {
		link(ns, func(eth netlink.Link) error {
			for _, cidr := range cidrs {
				if err := netlink.AddrAdd(eth, addr(cidr)); err != nil {
					return err
				}
			}
			return netlink.LinkSetUp(eth)
		})
	}
	link(client, func(eth netlink.Link) error {
		for dst, via := range map[string]string{"203.0.113.0/24": own, "2001:db8:9::/64": "2001:db8::1"} {
			r := &netlink.Route{LinkIndex: eth.Attrs().Index, Dst: ipNet(dst), Gw: net.ParseIP(via)}
			if err := netlink.RouteAdd(r); err != nil {
				return err
			}
		}
		return nil
	})

	changed := make(chan struct{}, 1)
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{Host: &hostaddr.Local{NetNS: node.FD()},
		Changed: func(nodeaddr.Addresses) {
			select {
			case changed <- struct{}{}:
			default:
			}
		}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- tracker.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	s := NewServices(nil, ServicesOptions{
		Addresses:     func() nodeaddr.Addresses { return addresses(0, own) },
		HostAddresses: tracker.Addresses,
		Listen: func(ctx context.Context, network, address string) (l net.Listener, err error) {
			node.Do(func() error {
				l, err = new(net.ListenConfig).Listen(ctx, network, address)
				return nil
			})
			return l, err
		},
	})
	defer s.Close()
	web := withVIPs("web", 32000, []string{vip, routed, vip6})
	s.SetService(web)
	syncUntil := func(has bool, address string) {
		t.Helper()
		a := netip.MustParseAddr(address)
		for {
			_, open := s.open[web.Name].listeners[listenKey{model.FamilyOf(a), a, web.HealthCheck.NodePort}]
			if open == has {
				return
			}
			<-changed
			require.NoError(t, s.Sync(t.Context()))
		}
	}
	ask := func(address string) (code int) {
		t.Helper()
		client.Do(func() error {
			code = statusAt(t, netip.AddrPortFrom(netip.MustParseAddr(address), 32000).String())
			return nil
		})
		return code
	}
	refused := func(address string) {
		t.Helper()
		client.Do(func() error {
			conn, err := net.Dial("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 32000).String())
			if err == nil {
				_ = conn.Close()
			}
			if !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("%s is not refused: %v", address, err)
			}
			return nil
		})
	}
	require.NoError(t, s.Sync(t.Context()))
	require.Equal(t, 200, ask(own))
	for _, cidr := range []string{vip + "/32", vip6 + "/128"} {
		link(node, func(eth netlink.Link) error { return netlink.AddrAdd(eth, addr(cidr)) })
	}
	refused(vip)
	refused(vip6)
	syncUntil(true, vip)
	syncUntil(true, vip6)
	require.Equal(t, []int{200, 200, 200}, []int{ask(own), ask(vip), ask(vip6)})

	// A local route without an address, as the guest agent of Google Compute Engine sets it.
	link(node, func(eth netlink.Link) error {
		return netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Attrs().Index, Dst: ipNet(routed + "/32"), Protocol: 66,
			Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST})
	})
	syncUntil(true, routed)
	require.Equal(t, 200, ask(routed))

	link(node, func(eth netlink.Link) error { return netlink.AddrDel(eth, addr(vip+"/32")) })
	syncUntil(false, vip)
	link(node, func(eth netlink.Link) error { return netlink.AddrAdd(eth, addr(vip+"/32")) })
	refused(vip)
	require.Equal(t, []int{200, 200, 200}, []int{ask(own), ask(vip6), ask(routed)}, "the others stay")
}
