package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// fakeNodes are the other nodes of a cluster.
type fakeNodes struct {
	mu      sync.Mutex
	list    []netip.Addr
	unknown bool
	asked   int
	changed chan struct{}
}

func nodesAt(addrs ...string) *fakeNodes {
	n := &fakeNodes{changed: make(chan struct{}, 1)}
	n.set(addrs...)
	<-n.changed // there is nothing else to find: a check would only run beside the test
	return n
}

// set makes these the addresses, and known.
func (n *fakeNodes) set(addrs ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list, n.unknown = nil, false
	for _, a := range addrs {
		n.list = append(n.list, netip.MustParseAddr(a))
	}
	slices.SortFunc(n.list, netip.Addr.Compare)
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

func (n *fakeNodes) Addresses() ([]netip.Addr, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.asked++
	return n.list, !n.unknown
}

// timesAsked returns how often the addresses were requested. A check in the background may request them as well.
func (n *fakeNodes) timesAsked() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.asked
}

// forget makes the addresses unknown.
func (n *fakeNodes) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unknown = true
}

func (n *fakeNodes) Changed() <-chan struct{} { return n.changed }

func (n *fakeNodes) option(o *Options) { o.OtherNodes = n }

// ext is a service that lists addresses of nodes.
func ext(addrs ...string) []any {
	b := fm.Service("default/ext").ClusterIP("10.96.0.70", "fd00:96::70").Port("http", 80)
	for _, a := range addrs {
		b.ExternalIP(a)
	}
	return []any{b.Build(), fm.Endpoint("default/ext:http/TCP", pod1.String()).Build(),
		fm.Endpoint("default/ext:http/TCP", "[fd00:244:1::5]:8080").Build()}
}

// At an address of another node only the service's ports are taken (S63): it is not on the dummy interface, and packets
// to the ports are marked, and delivered by their mark.
func TestOnlyThePortsAreTakenAtAnAddressOfAnotherNode(t *testing.T) {
	for f, addr := range map[model.Family]string{model.IPv4: "192.0.2.20", model.IPv6: "2001:db8::20"} {
		k := newKernel(t)
		b := k.start(t, nodesAt("192.0.2.20", "2001:db8::20").option)
		put(t, b, append(ext(addr, "203.0.113.9"), backendtest.Node())...)
		dump, table := k.ipvs.Dump(), k.table(f)
		require.Contains(t, dump, "-A -t "+netip.AddrPortFrom(netip.MustParseAddr(addr), 80).String())
		require.Contains(t, dump, fmt.Sprintf("deliver %v mark 0x80000000\n", f))
		require.Equal(t, 1, strings.Count(dump, "deliver "), "the other family needs nothing")
		require.NotContains(t, dump, "address "+addr)
		require.Contains(t, dump, "address 203.0.113.9", "of an ordinary VIP")
		require.Contains(t, table, addr+" . tcp . 80 : goto masquerade-traffic")
		prefix := map[model.Family]string{model.IPv4: "ip", model.IPv6: "ip6"}[f]
		require.Contains(t, table, "set other-ips {\n\t\ttypeof "+prefix+
			" daddr . meta l4proto . th dport\n\t\telements = { "+addr+" . tcp . 80 }")
		require.Contains(t, table, "type filter hook prerouting priority -150; policy accept;")
		require.Contains(t, table, "@other-ips meta mark set meta mark | 0x80000000")
		require.Contains(t, table, "meta mark & 0x80000000 == 0x80000000 meta mark set meta mark ^ 0x80000000")
		require.NotContains(t, strings.Split(strings.Split(table, "set bound-ips")[1], "}")[0], addr,
			"other ports are the node's")

		// A new process finds everything.
		k.ipvs.TakeCalls()
		applied := k.nft.Applied()
		b = k.start(t, nodesAt("192.0.2.20", "2001:db8::20").option)
		put(t, b, append(ext(addr, "203.0.113.9"), backendtest.Node())...)
		b.ForceResync()
		put(t, b)
		require.Empty(t, k.ipvs.TakeCalls().Writes)
		require.Equal(t, applied, k.nft.Applied())

		// Nothing is left of it when the service goes.
		put(t, b, ext("203.0.113.9")[0])
		require.NotContains(t, k.ipvs.Dump(), "deliver ")
		require.NotContains(t, k.table(f), "hook prerouting priority -150")
		require.NotContains(t, k.table(f), addr)
	}
}

// A node gets an address that is a VIP, and loses it: the result depends on the state alone, and packets to the service
// always have a way.
func TestAnAddressChangesWhenItsNodeComesAndGoes(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			k, nodes := newKernel(t), nodesAt()
			b := k.start(t, nodes.option)
			values := append(ext("192.0.2.20", "2001:db8::20"), backendtest.Node())
			put(t, b, values...)
			change := func(addrs ...string) {
				if restart {
					require.NoError(t, b.Close())
				}
				nodes.set(addrs...)
				if restart {
					b = k.start(t, nodes.option)
					put(t, b, values...)
				}
				time.Sleep(time.Minute) // after a repair it pauses
				synctest.Wait()
			}
			without, withoutTable := k.ipvs.Dump(), k.sorted(model.IPv4)
			require.Contains(t, without, "address 192.0.2.20")
			k.ipvs.TakeCalls()
			change("192.0.2.20", "192.0.2.30", "2001:db8::20")
			with, withTable := k.ipvs.Dump(), k.sorted(model.IPv4)
			require.NotContains(t, with, "address 192.0.2.20")
			require.NotContains(t, with, "address 2001:db8::20")
			require.Contains(t, withTable, "192.0.2.20 . tcp . 80 }")
			require.Equal(t, []string{"deliver IPv4 packets with mark 0x80000000", "delete address 192.0.2.20",
				"deliver IPv6 packets with mark 0x80000000", "delete address 2001:db8::20"}, sorted(k.ipvs.TakeCalls().Writes),
				"first the new way, and virtual servers stay")
			change()
			require.Equal(t, without, k.ipvs.Dump())
			require.Equal(t, withoutTable, k.sorted(model.IPv4))
			require.Equal(t, []string{"add address 192.0.2.20", "deliver IPv4 packets with mark 0x0",
				"add address 2001:db8::20", "deliver IPv6 packets with mark 0x0"}, sorted(k.ipvs.TakeCalls().Writes))
			change("192.0.2.20", "2001:db8::20")
			require.Equal(t, with, k.ipvs.Dump())
			require.Equal(t, withTable, k.sorted(model.IPv4))
			require.NoError(t, b.Close())
		})
	}
}

// sorted puts the calls for IPv4 first, and keeps their order.
func sorted(writes []string) []string {
	writes = slices.Clone(writes)
	rank := func(call string) int {
		if strings.Contains(call, "IPv6") || strings.Contains(call, "2001:") {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(writes, func(a, b string) int { return rank(a) - rank(b) })
	return writes
}

// Until the nodes are known, a new address may be one of theirs; what an earlier process has put on the interface stays
// there.
func TestUntilTheNodesAreKnownOnlyPortsAreTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, nodes := newKernel(t), nodesAt()
		b := k.start(t, nodes.option)
		put(t, b, append(ext("203.0.113.1"), backendtest.Node())...)
		require.NoError(t, b.Close())
		nodes.forget()
		b = k.start(t, nodes.option)
		put(t, b, append(ext("203.0.113.1", "203.0.113.2", "192.0.2.20"), backendtest.Node())...)
		dump := k.ipvs.Dump()
		require.Contains(t, dump, "address 203.0.113.1")
		require.Contains(t, dump, "address 10.96.0.70", "a cluster IP is nobody else's")
		for _, a := range []string{"203.0.113.2", "192.0.2.20"} {
			require.NotContains(t, dump, "address "+a)
			require.Contains(t, dump, "-A -t "+a+":80")
			require.Contains(t, k.table(model.IPv4), a+" . tcp . 80 : goto")
		}
		require.Contains(t, dump, "deliver IPv4 mark 0x80000000")
		nodes.set("192.0.2.20")
		synctest.Wait()
		dump = k.ipvs.Dump()
		require.Contains(t, dump, "address 203.0.113.2")
		require.NotContains(t, dump, "address 192.0.2.20")
		require.Contains(t, k.table(model.IPv4), "elements = { 192.0.2.20 . tcp . 80 }")
		require.NoError(t, b.Close())
	})
}

// Watching all nodes is not free: the addresses are requested only for services that may list one of them.
func TestTheNodesAreNotAskedForWithoutAnExternalAddress(t *testing.T) {
	k, nodes := newKernel(t), nodesAt("192.0.2.20")
	b := k.start(t, nodes.option)
	put(t, b, append(ext("192.0.2.10"), backendtest.Node())...) // an address of this node
	put(t, b, web()...)
	b.ForceResync()
	put(t, b)
	require.Zero(t, nodes.timesAsked())
	put(t, b, ext("192.0.2.20")...)
	require.NotZero(t, nodes.timesAsked())
}

// k3s' service load balancer lists the addresses of all nodes, in each service. A node that comes costs what it
// concerns.
func TestAThousandNodesInTenServices(t *testing.T) {
	k, nodes := newKernel(t), nodesAt()
	var addrs []string
	var values []any
	for n := range 1000 {
		addrs = append(addrs, fmt.Sprintf("198.18.%d.%d", n/250, n%250+1))
	}
	nodes.set(addrs...)
	for s := range 10 {
		svc := fm.Service(fmt.Sprint("default/lb-", s)).ClusterIP(fmt.Sprint("10.96.1.", s)).Port("http", uint16(8000+s))
		for _, a := range addrs {
			svc.LoadBalancerIP(a)
		}
		svc.LoadBalancerIP("192.0.2.10") // this node
		values = append(values, svc.Build(), fm.Endpoint(fmt.Sprintf("default/lb-%d:http/TCP", s), pod1.String()).Build())
	}
	b := k.start(t, nodes.option)
	put(t, b, append(values, backendtest.Node())...)
	dump := k.ipvs.Dump()
	require.Equal(t, 10, strings.Count(dump, "address "), "the cluster IPs")
	require.Equal(t, 10*1002, strings.Count(dump, "-A -t "))
	require.Equal(t, 1, strings.Count(dump, "deliver "), "one rule, whatever the number of addresses and ports")
	require.Equal(t, 10_000, strings.Count(strings.Split(k.table(model.IPv4), "set other-ips")[1], " . tcp . 80"))
	k.ipvs.TakeCalls()
	nodes.set(append(addrs, "198.19.0.1")...)
	put(t, b)
	require.Empty(t, k.ipvs.TakeCalls().Writes, "no service lists it")
	nodes.set(addrs[1:]...)
	put(t, b)
	require.Equal(t, []string{"add address 198.18.0.1"}, k.ipvs.TakeCalls().Writes)
}

// Connections to a service that goes end by themselves, at another node's address as well: packets are delivered until
// then, also by the next process.
func TestAPortAtAnotherNodesAddressIsGivenUpAfterTheLastConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, nodes := newKernel(t), nodesAt("192.0.2.20")
		often := func(o *Options) { o.drainInterval = 10 * time.Second }
		b := k.start(t, nodes.option, often)
		put(t, b, append(ext("192.0.2.20"), backendtest.Node())...)
		server := key("192.0.2.20:80", model.TCP)
		k.ipvs.SetConnections(server, pod1, 1, 0)
		put(t, b, ext()[0])
		for range 2 {
			time.Sleep(time.Minute)
			synctest.Wait()
			require.Contains(t, k.ipvs.Dump(), "-a -t 192.0.2.20:80 -r 10.244.1.5:8080 -m -w 0")
			require.Contains(t, k.ipvs.Dump(), "deliver IPv4 mark 0x80000000")
			require.NotContains(t, k.ipvs.Dump(), "address 192.0.2.20")
			require.Contains(t, k.table(model.IPv4), "elements = { 192.0.2.20 . tcp . 80 }")
			require.NoError(t, b.Close())
			b = k.start(t, nodes.option, often)
			put(t, b, append(ext(), backendtest.Node())...)
		}
		k.ipvs.SetConnections(server, pod1, 0, 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NotContains(t, k.ipvs.Dump(), "192.0.2.20")
		require.NotContains(t, k.ipvs.Dump(), "deliver")
		require.NotContains(t, k.table(model.IPv4), "192.0.2.20")
		require.NoError(t, b.Close())
	})
}

// An address of this node serves ports anyway, even if another Node says that it has it.
func TestTheNodesOwnAddressStaysItsOwn(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, nodesAt("192.0.2.10", "2001:db8::10").option)
	put(t, b, append(ext("192.0.2.10", "2001:db8::10"), backendtest.Node())...)
	require.Contains(t, k.ipvs.Dump(), "-A -t 192.0.2.10:80")
	require.NotContains(t, k.ipvs.Dump(), "deliver")
	require.NotContains(t, k.table(model.IPv4), "@other-ips")
}

// The backend polls the rule that delivers packets, as it does virtual servers, because the kernel does not report its
// deletion.
func TestTheRuleThatAnotherProgramDeletesComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newKernel(t)
		b := k.start(t, nodesAt("192.0.2.20").option, func(o *Options) { o.drainInterval = 10 * time.Second })
		put(t, b, append(ext("192.0.2.20"), backendtest.Node())...)
		for _, left := range []uint32{0, dp.IncompleteDelivery} {
			k.ipvs.SetDelivery(model.IPv4, left)
			time.Sleep(11 * time.Second)
			synctest.Wait()
			require.Contains(t, k.ipvs.Dump(), "deliver IPv4 mark 0x80000000")
		}
		require.NoError(t, b.Close())
	})
}

// A rule for another bit, of a process with other marks, is replaced; clean-up removes it.
func TestAfterARestartWithOtherMarksThereIsOneRule(t *testing.T) {
	k := newKernel(t)
	values := append(ext("192.0.2.20"), backendtest.Node())
	put(t, k.start(t, nodesAt("192.0.2.20").option), values...)
	b := k.start(t, nodesAt("192.0.2.20").option, func(o *Options) { o.Marks = 0x3fff })
	put(t, b, values...)
	require.Contains(t, k.ipvs.Dump(), "deliver IPv4 mark 0x00002000")
	require.Contains(t, k.table(model.IPv4), "@other-ips meta mark set meta mark | 0x00002000")
	require.NoError(t, b.CleanUp(t.Context()))
	require.Empty(t, k.ipvs.Dump())
	put(t, b)
	require.Contains(t, k.ipvs.Dump(), "deliver IPv4 mark 0x00002000")

	// A process that has no such address removes it.
	put(t, k.start(t), backendtest.Node())
	require.NotContains(t, k.ipvs.Dump(), "deliver")
}

// If the kernel cannot deliver packets to single ports, the services are reported, and everything else is served.
func TestWhatCannotBeDeliveredIsReported(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, nodesAt("192.0.2.20").option)
	k.ipvs.SetFail(func(call string) error {
		if strings.HasPrefix(call, "deliver IPv4 packets with mark 0x8") {
			return syscall.EEXIST
		}
		return nil
	})
	backendtest.Set(t, b, append(append(ext("192.0.2.20"), web()...), backendtest.Node())...)
	err := b.Sync(t.Context())
	require.Equal(t, []string{"default/ext:http/TCP"}, failedPorts(t, err))
	require.ErrorContains(t, err, "deliver IPv4 packets with mark 0x80000000")
	require.Contains(t, k.ipvs.Dump(), "-A -t 10.96.0.70:80")
	k.ipvs.SetFail(nil)
	b.ResyncFailed()
	put(t, b)
	require.Contains(t, k.ipvs.Dump(), "deliver IPv4 mark 0x80000000")
}

// An API server is another machine, whether or not its Node is known. Its own port is never taken.
func TestThePortOfAnAPIServerIsNeverTaken(t *testing.T) {
	apiServer := func(addr string) any { return fm.Endpoint("default/kubernetes:https/TCP", addr).Build() }
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(ext("192.0.2.20"), backendtest.Node(),
		fm.Service("default/kubernetes").ClusterIP("10.96.0.1").Port("https", 443).Build(),
		fm.Service("default/same").ClusterIP("10.96.0.71").ExternalIP("192.0.2.20").Port("https", 6443).Build(),
		fm.Endpoint("default/same:https/TCP", pod1.String()).Build())...)
	const bound, served, same = "address 192.0.2.20", "-A -t 192.0.2.20:80", "-A -t 192.0.2.20:6443"
	require.Contains(t, k.ipvs.Dump(), bound)
	require.Contains(t, k.ipvs.Dump(), same)

	// It turns out to be an API server's.
	backendtest.Set(t, b, apiServer("192.0.2.20:6443"))
	err := b.Sync(t.Context())
	require.Equal(t, []string{"default/same:https/TCP"}, failedPorts(t, err))
	require.ErrorIs(t, err, errAPIServer)
	require.ErrorContains(t, err, "192.0.2.20:6443/TCP: the address and port are an API server's")
	require.NotContains(t, k.ipvs.Dump(), bound)
	require.NotContains(t, k.ipvs.Dump(), same)
	require.NotContains(t, k.table(model.IPv4), "192.0.2.20 . tcp . 6443")
	require.Contains(t, k.ipvs.Dump(), "-A -t 10.96.0.71:6443", "the service's other address is served")
	require.Contains(t, k.ipvs.Dump(), served, "and the other service is at its port")
	require.Contains(t, k.table(model.IPv4), "elements = { 192.0.2.20 . tcp . 80 }")
	before, table := k.ipvs.Dump(), k.sorted(model.IPv4)
	b.ForceResync()
	require.Equal(t, []string{"default/same:https/TCP"}, failedPorts(t, b.Sync(t.Context())))
	require.Equal(t, before, k.ipvs.Dump())
	require.Equal(t, table, k.sorted(model.IPv4))

	// The API server moves to the node itself, whose address serves ports anyway.
	b.DeleteEndpoint(apiServer("192.0.2.20:6443").(*model.Endpoint).Key())
	put(t, b, apiServer("192.0.2.10:6443"),
		fm.Service("default/own").ClusterIP("10.96.0.72").ExternalIP("192.0.2.10").Port("http", 80).Build(),
		fm.Endpoint("default/own:http/TCP", pod1.String()).Build())
	require.Contains(t, k.ipvs.Dump(), bound)
	require.Contains(t, k.ipvs.Dump(), served)
	require.Contains(t, k.ipvs.Dump(), same)
	require.Contains(t, k.ipvs.Dump(), "-A -t 192.0.2.10:80")
}

// An API server that stops withdraws its endpoint. If it is the only one, nothing but the API server itself can tell
// this node when it is back: it must stay within reach.
func TestTheLastAPIServerKeepsItsAddress(t *testing.T) {
	apiServer := func(addr string) *model.Endpoint { return fm.Endpoint("default/kubernetes:https/TCP", addr).Build() }
	kubernetes := fm.Service("default/kubernetes").ClusterIP("10.96.0.1").Port("https", 443).Build()
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(ext("192.0.2.20"), backendtest.Node(), kubernetes, apiServer("192.0.2.20:6443"))...)
	b.SetService(fm.Service("default/same").ClusterIP("10.96.0.71").ExternalIP("192.0.2.20").Port("https", 6443).Build())
	b.SetEndpoint(fm.Endpoint("default/same:https/TCP", pod1.String()).Build())
	require.Equal(t, []string{"default/same:https/TCP"}, failedPorts(t, b.Sync(t.Context())))
	before := k.ipvs.Dump()
	require.NotContains(t, before, "address 192.0.2.20")
	for _, withdraw := range []func(){
		func() { b.DeleteEndpoint(apiServer("192.0.2.20:6443").Key()) },
		b.ForceResync,
		func() { b.DeleteService(kubernetes.Name) },
	} {
		withdraw()
		require.Equal(t, []string{"default/same:https/TCP"}, failedPorts(t, b.Sync(t.Context())))
		require.NotContains(t, k.ipvs.Dump(), "address 192.0.2.20")
		require.NotContains(t, k.ipvs.Dump(), "-t 192.0.2.20:6443")
		require.Contains(t, k.ipvs.Dump(), "-A -t 192.0.2.20:80")
	}

	// It has moved.
	put(t, b, kubernetes, apiServer("192.0.2.30:6443"))
	require.Contains(t, k.ipvs.Dump(), "address 192.0.2.20")
	require.Contains(t, k.ipvs.Dump(), "-A -t 192.0.2.20:6443")
}

// The virtual IP of the API servers is no endpoint of default/kubernetes, and a service may be what provides it.
func TestTheAddressByWhichTheAPIServerIsReachedIsNotTheNodesOwn(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, func(o *Options) {
		o.APIServers = []netip.Addr{netip.MustParseAddr("192.0.2.20"), netip.MustParseAddr("10.96.0.1")}
	})
	put(t, b, append(ext("192.0.2.20"), backendtest.Node(),
		fm.Service("default/kubernetes").ClusterIP("10.96.0.1").Port("https", 443).Build(),
		fm.Endpoint("default/kubernetes:https/TCP", "192.0.2.30:6443").Build(),
		fm.Service("default/vip").ClusterIP("10.96.0.71").ExternalIP("192.0.2.20").Port("https", 6443).Build(),
		fm.Endpoint("default/vip:https/TCP", "192.0.2.30:6443").Build())...)
	dump := k.ipvs.Dump()
	require.NotContains(t, dump, "address 192.0.2.20")
	require.Contains(t, dump, "-A -t 192.0.2.20:80", "its ports are served")
	require.Contains(t, dump, "-A -t 192.0.2.20:6443", "that of the API server as well")
	require.Contains(t, dump, "-A -t 10.96.0.1:443")
	require.Contains(t, dump, "address 10.96.0.1", "the service of the API servers is one like others")
}

// portsAt is a service with many ports at one external IP.
func portsAt(address string, from uint16, ports int) *model.Service {
	b := fm.Service(fmt.Sprint("default/from-", from)).ExternalIP("203.0.113.99", "2001:db8::99").
		ClusterIP(fmt.Sprint("10.96.1.", from>>2), fmt.Sprint("fd00:96::", from))
	for i := range ports {
		b.Port(fmt.Sprint("p", i), from+uint16(i))
	}
	s := b.Build()
	s.ExternalIPs = []netip.Addr{netip.MustParseAddr(address)}
	return s
}

// What a change costs follows what it changes: not the ports at an address, nor those at a refused one.
func TestPortsOfAnAddressAreLookedAtWhenTheyChange(t *testing.T) {
	const refused = "ff0e::1" // by the kernel: it is no host's
	costs := func(address string, ports int) (looks []int) {
		k, nodes := newKernel(t), nodesAt("192.0.2.30")
		b := k.start(t, nodes.option)
		sync := func() {
			err := b.Sync(t.Context())
			require.Equal(t, address == refused, err != nil, "%v", err)
			looked := 0
			for _, f := range b.families {
				looked += f.addresses.looked
				f.addresses.looked = 0
			}
			looks = append(looks, looked)
		}
		put(t, b, backendtest.Node(), ext("192.0.2.20")[0])
		b.SetService(portsAt(address, 1000, ports))
		sync() // all are new
		nodes.set("192.0.2.30", "192.0.2.31")
		b.SetEndpoint(fm.Endpoint("default/ext:http/TCP", pod1.String()).Build())
		sync() // another Node comes
		b.SetEndpoint(fm.Endpoint("default/ext:http/TCP", pod2.String()).Build())
		sync() // an endpoint of another service
		b.SetService(portsAt(address, 80, 1))
		sync() // another port at the address
		return looks
	}
	for what, address := range map[string]string{"an ordinary address": "203.0.113.1", "of another node": "192.0.2.30",
		"a refused address": refused} {
		n, twice := costs(address, 100), costs(address, 200)
		t.Log(what, n, twice)
		require.LessOrEqual(t, twice[0], 2*n[0]+10, what)
		require.Equal(t, n[1:], twice[1:], what)
	}
}
