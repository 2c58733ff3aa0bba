package userspace_test

import (
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// The work is the sockets that are opened to listen. All addresses are the namespace's own, so that the bystanders'
// pods are one server.
func TestNoTenantCostsMoreThanItAsksFor(t *testing.T) {
	testkit.NeedRoot(t)
	var ns *testkit.Namespace
	backendtest.Tenants{
		Price: backendtest.Price{Frontend: 1},
		New: func(t *testing.T, limits frontend.Limits) (backendtest.TenantBackend, func() backendtest.Work) {
			ns = testkit.NewNamespace(t)
			ns.Do(func() error { return everyAddressIsLocal() })
			var pods net.Listener
			ns.Do(func() (err error) {
				pods, err = net.Listen("tcp", "0.0.0.0:8080")
				return err
			})
			t.Cleanup(func() { _ = pods.Close() })
			go answer(pods)
			host := &nodeaddr.Fake{}
			host.Set(nodeaddr.HostAddress{Addr: netip.MustParseAddr("192.0.2.10"), Interface: "eth0"})
			var mu sync.Mutex // connections to pods are sockets as well
			var work backendtest.Work
			b, err := userspace.New(t.Context(), userspace.Options{
				Common: frontend.Common{Families: []model.Family{model.IPv4}, Limits: limits, Host: host},
				Open: func(open func() error) error {
					mu.Lock()
					work.Add(1, 0)
					mu.Unlock()
					return ns.Namespace.Do(open)
				},
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			return b, func() backendtest.Work {
				mu.Lock()
				defer mu.Unlock()
				return work.Take()
			}
		},
		Check: func(t *testing.T) {
			for vip, pods := range map[string]string{"10.96.0.1:80": "10.77.1.", "10.96.0.2:80": "10.77.2.",
				"10.96.0.3:80": "10.77.3."} {
				var c net.Conn
				ns.Do(func() (err error) {
					c, err = net.Dial("tcp", vip)
					return err
				})
				pod, err := io.ReadAll(c)
				require.NoError(t, err)
				require.Contains(t, string(pod), pods, vip)
				require.NoError(t, c.Close())
			}
		},
	}.Search(t)
}

// everyAddressIsLocal makes all IPv4 addresses those of the namespace.
func everyAddressIsLocal() error {
	if err := configure("lo", ""); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	_, all, err := net.ParseCIDR("0.0.0.0/0")
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL,
		Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL})
}

// answer writes the address that was connected to, and closes.
func answer(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(c, c.LocalAddr().String())
		_ = c.Close()
	}
}
