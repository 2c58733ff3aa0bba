package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// A service may list an address of the node as its external IP, at a port number that is a node port. If both belong to
// the same service, the external IP comes first. If they do not, the service that has the address keeps it (S59), and
// the node port serves it again when the external IP goes.
func TestANodePortAndAnExternalIPOfTheNodeTakeTurns(t *testing.T) {
	const atNode = "-t 192.0.2.10:30080"
	nodePort := func(external ...string) *model.Service {
		return fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP(external...).Port("http", 30080).
			NodePort(30080).Build()
	}
	other := fm.Service("default/aaa").ClusterIP("10.96.0.11").ExternalIP("192.0.2.10").Port("http", 30080).Build()
	endpoints := []any{fm.Endpoint("default/web:http/TCP", pod1.String()).Build(),
		fm.Endpoint("default/aaa:http/TCP", pod2.String()).Build()}
	served := "-a " + atNode + " -r " + pod1.String() + " -m -w 1"
	servedByOther := "-a " + atNode + " -r " + pod2.String() + " -m -w 1"

	t.Run("of the same service", func(t *testing.T) {
		k := newKernel(t)
		b := k.start(t)
		put(t, b, append(endpoints, backendtest.Node(), nodePort())...)
		want, table := k.ipvs.Dump(), k.sorted(model.IPv4)
		require.Contains(t, want, served)
		put(t, b, nodePort("192.0.2.10"))
		require.Contains(t, k.ipvs.Dump(), served)
		put(t, b, nodePort())
		require.Equal(t, want, k.ipvs.Dump())
		require.Equal(t, table, k.sorted(model.IPv4))
	})
	t.Run("of another service", func(t *testing.T) {
		k := newKernel(t)
		b := k.start(t)
		put(t, b, append(endpoints, backendtest.Node(), nodePort())...)
		want, table := k.ipvs.Dump(), k.sorted(model.IPv4)
		for range 2 {
			put(t, b, other)
			require.Contains(t, k.ipvs.Dump(), served, "the node port keeps the address (S59)")
			require.NotContains(t, k.ipvs.Dump(), servedByOther)
			b.DeleteService(nodePort().Name)
			put(t, b)
			require.Contains(t, k.ipvs.Dump(), servedByOther)
			put(t, b, nodePort())
			require.Contains(t, k.ipvs.Dump(), servedByOther, "and so does the external IP")
			require.NotContains(t, k.ipvs.Dump(), served)
			// The node port's endpoints are not endpoints of the external IP.
			put(t, b, fm.Endpoint("default/web:http/TCP", "10.244.9.9:8080").Build())
			require.NotContains(t, k.ipvs.Dump(), "-a "+atNode+" -r 10.244.9.9:8080")
			b.DeleteEndpoint(fm.Endpoint("default/web:http/TCP", "10.244.9.9:8080").Build().Key())
			b.DeleteService(other.Name)
			put(t, b)
			for _, family := range model.Families() {
				b.drain(t, family)
			}
			require.Equal(t, want, k.ipvs.Dump())
			require.Equal(t, table, k.sorted(model.IPv4))
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		k := newKernel(t)
		for range 2 {
			b := k.start(t)
			put(t, b, append(endpoints, backendtest.Node(), nodePort(), other)...)
			require.Contains(t, k.ipvs.Dump(), servedByOther)
			require.NotContains(t, k.ipvs.Dump(), served)
			b.DeleteService(nodePort().Name)
			put(t, b)
			require.Contains(t, k.ipvs.Dump(), servedByOther, "the node port that goes takes nothing along")
		}
	})
}

// This is the product that frontend.Limits do not count: SECURITY.md.
func TestANodePortHasItsEndpointsAtEachAddress(t *testing.T) {
	destinations := func(addresses, ports, endpoints int) int {
		k := newKernel(t)
		var list []nodeaddr.HostAddress
		for i := range addresses {
			list = append(list, nodeaddr.HostAddress{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}), Interface: "eth0"})
		}
		k.host.Set(list...)
		b := k.start(t, func(o *Options) { o.NodePortAddresses = nodeaddr.Choice{} })
		s := fm.Service("default/web").ClusterIP("10.96.0.10")
		for p := range ports {
			s.Port(fmt.Sprint("p", p), uint16(80+p)).NodePort(uint16(30080 + p))
			for e := range endpoints {
				b.SetEndpoint(fm.Endpoint(fmt.Sprintf("default/web:p%d/TCP", p), fmt.Sprintf("10.244.1.%d:80", e+1)).Build())
			}
		}
		put(t, b, backendtest.Node(), s.Build())
		return strings.Count(k.ipvs.Dump(), "-a -t 192.0.2.")
	}
	require.Equal(t, 2*3, destinations(1, 2, 3))
	require.Equal(t, 4*2*3, destinations(4, 2, 3))
}

// A conflict with a virtual server of others is no failure of a repair.
func TestAConflictDoesNotFailTheRepairOfNodePorts(t *testing.T) {
	k := newKernel(t)
	addServer(t, k, dp.Server{ServerKey: key("192.0.2.10:30080", model.TCP), Scheduler: "rr"}, pod1)
	own := nodeaddr.HostAddress{Addr: key("192.0.2.10:1", model.TCP).Addr, Interface: "eth0"}
	b := k.start(t, func(o *Options) {
		o.NodePortAddresses = nodeaddr.Choice{}
		o.ExcludeCIDRs = append(o.ExcludeCIDRs, netip.PrefixFrom(own.Addr, 32))
	})
	backendtest.Set(t, b, fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).Build())
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	var byOthers atomic.Bool
	b.OnRepair(func(model.Family) { byOthers.Store(true) })
	k.host.Set(own, nodeaddr.HostAddress{Addr: key("192.0.2.11:1", model.TCP).Addr, Interface: "eth0"})
	require.Eventually(t, func() bool {
		_, repaired := b.Repairs()
		return repaired > 0
	}, time.Minute, time.Millisecond)
	last, _ := b.Repairs()
	for _, r := range last {
		require.NoError(t, r.Err)
	}
	require.False(t, byOthers.Load(), "nobody has removed anything")
}

// The addresses of virtual servers are on an interface of their own. They are not addresses of the node, whichever
// program created the interface.
func TestAddressesOfServiceLinksServeNoNodePorts(t *testing.T) {
	k := newKernel(t)
	addresses := []nodeaddr.HostAddress{{Addr: netip.MustParseAddr("192.0.2.10"), Interface: "eth0"}}
	for i, link := range append(ServiceLinks(), "my-ipvs") {
		addresses = append(addresses, nodeaddr.HostAddress{Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(20 + i)}),
			Interface: link})
	}
	k.host.Set(addresses...)
	b := k.start(t, func(o *Options) { o.NodePortAddresses, o.Link = nodeaddr.Choice{}, "my-ipvs" })
	put(t, b, backendtest.Node(), fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).
		Build(), fm.Endpoint("default/web:http/TCP", pod1.String()).Build())
	require.Contains(t, k.ipvs.Dump(), "-A -t 192.0.2.10:30080 ")
	require.NotContains(t, k.ipvs.Dump(), "-t 10.96.0.2")
}
