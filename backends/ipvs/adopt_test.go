package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
	"sigs.k8s.io/kube-proxy-lib/node/sysctl"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func addServer(t *testing.T, k *kernel, s dp.Server, targets ...netip.AddrPort) {
	t.Helper()
	require.NoError(t, k.ipvs.AddServer(t.Context(), s))
	for _, target := range targets {
		require.NoError(t, k.ipvs.AddDestination(t.Context(), s.ServerKey, dp.Destination{Target: target, Weight: 1}))
	}
}

func TestVirtualServersOfOthersAreLeftAlone(t *testing.T) {
	k := newKernel(t)
	addServer(t, k, dp.Server{ServerKey: key("172.16.0.1:80", model.TCP), Scheduler: "wrr"}, pod1)
	b := k.start(t)
	put(t, b, web()...)
	require.NoError(t, b.CleanUp(t.Context()))
	require.Equal(t, "-A -t 172.16.0.1:80 -s wrr\n-a -t 172.16.0.1:80 -r 10.244.1.5:8080 -m -w 1\n", k.ipvs.Dump())
}

func TestVirtualServersOfUpstreamAreTakenOverWithTheirConnections(t *testing.T) {
	k := newKernel(t)
	gone := netip.MustParseAddrPort("10.244.3.5:8080")
	tcp := key("10.96.0.10:80", model.TCP)
	addServer(t, k, dp.Server{ServerKey: tcp, Scheduler: "rr"}, pod1, gone)
	b := k.start(t)
	put(t, b, web()...)
	require.Contains(t, k.ipvs.Dump(), `-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1
-a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1
-a -t 10.96.0.10:80 -r 10.244.3.5:8080 -m -w 0
`)
	require.NotContains(t, k.ipvs.TakeCalls().Writes, "add endpoint 10.244.1.5:8080 to 10.96.0.10:80/TCP")
}

func TestAServiceAtAnExcludedVirtualServerIsNotServedThereAndNamed(t *testing.T) {
	k := newKernel(t)
	addServer(t, k, dp.Server{ServerKey: key("203.0.113.1:80", model.TCP), Scheduler: "rr"}, pod1)
	b := k.start(t, func(o *Options) { o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} })
	for _, v := range []any{
		fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("203.0.113.1").Port("http", 80).Build(),
		fm.Endpoint("default/web:http/TCP", pod2.String()).Build(),
	} {
		switch v := v.(type) {
		case *model.Service:
			b.SetService(v)
		case *model.Endpoint:
			b.SetEndpoint(v)
		}
	}
	err := b.Sync(t.Context())
	require.ErrorContains(t, err, "default/web:http/TCP")
	require.ErrorContains(t, err, "203.0.113.1:80/TCP is a virtual server of another program")
	require.Len(t, sink.PortErrors(err), 1)
	require.Zero(t, sink.FailedFamilies(err))
	require.Contains(t, k.ipvs.Dump(), "-A -t 203.0.113.1:80 -s rr\n"+
		"-a -t 203.0.113.1:80 -r 10.244.1.5:8080 -m -w 1\n")
	require.Contains(t, k.ipvs.Dump(), "-A -t 10.96.0.10:80 -s rr -b flag-3\n"+
		"-a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1\n")
}

// Its endpoints are not deleted instead of those that drained in the virtual server that was there before.
func TestAnExcludedVirtualServerThatReplacesOursIsLeftAlone(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, func(o *Options) { o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.10/32")} })
	put(t, b, web()...)
	tcp := key("10.96.0.10:80", model.TCP)
	k.ipvs.SetConnections(tcp, pod1, 1, 0)
	deletePod1(t, b)
	require.NoError(t, k.ipvs.DeleteServer(t.Context(), tcp))
	addServer(t, k, dp.Server{ServerKey: tcp, Scheduler: "wrr"}, pod1, pod2)
	b.ForceResync()
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	b.drain(t, model.IPv4)
	require.Contains(t, k.ipvs.Dump(), "-A -t 10.96.0.10:80 -s wrr\n"+
		"-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1\n-a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1\n")
}

func TestChangesByOthersInIPVSAreRepairedAtAResync(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	before := k.ipvs.Dump()
	tcp, udp := key("10.96.0.10:80", model.TCP), key("10.96.0.10:80", model.UDP)
	require.NoError(t, k.ipvs.DeleteServer(t.Context(), tcp))
	require.NoError(t, k.ipvs.UpdateDestination(t.Context(), udp, dp.Destination{Target: pod1, Weight: 0}))
	require.NoError(t, k.ipvs.UpdateServer(t.Context(), dp.Server{ServerKey: udp, Scheduler: "wrr", Flags: dp.Owned}))
	require.NoError(t, k.ipvs.DeleteAddress(t.Context(), tcp.Addr))
	b.ForceResync()
	put(t, b)
	require.Equal(t, before, k.ipvs.Dump())
}

func TestChangesByOthersInThePacketFilterAreRepairedAtOnce(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	before := k.table(model.IPv4)
	tx := nft.NewTransaction(nft.TableKey{Family: model.IPv4, Name: tableName})
	tx.DeleteTable()
	require.NoError(t, k.nft.ApplyUnnoticed(tx))
	other := nft.NewTransaction(nft.TableKey{Family: model.IPv4, Name: tableName})
	other.AddTable("")
	require.NoError(t, k.nft.ApplyAsSomebodyElse(other))
	require.Eventually(t, func() bool { return k.table(model.IPv4) == before }, time.Minute, time.Millisecond)
}

func TestAFailureLosesNothing(t *testing.T) {
	want := newKernel(t)
	put(t, want.start(t), web()...)
	for _, call := range []string{"add virtual server 10.96.0.10:80/UDP",
		"add endpoint 10.244.2.5:8080 to 10.96.0.10:80/TCP",
		"add address 10.96.0.10"} {
		t.Run(call, func(t *testing.T) {
			k := newKernel(t)
			b := k.start(t)
			k.ipvs.SetFail(func(c string) error {
				if c == call {
					return syscall.ENOMEM
				}
				return nil
			})
			for _, v := range web() {
				if s, ok := v.(*model.Service); ok {
					b.SetService(s)
				} else {
					b.SetEndpoint(v.(*model.Endpoint))
				}
			}
			err := b.Sync(t.Context())
			require.ErrorIs(t, err, syscall.ENOMEM)
			require.ErrorContains(t, err, "IPv4: ")
			k.ipvs.SetFail(nil)
			b.ResyncFailed()
			require.NoError(t, b.Sync(t.Context()))
			require.Equal(t, want.ipvs.Dump(), k.ipvs.Dump())
			require.Equal(t, want.table(model.IPv4), k.table(model.IPv4))
		})
	}
}

func TestASchedulerThatTheKernelLacksIsNamedWithItsModule(t *testing.T) {
	k := newKernel(t)
	o := k.options()
	o.Scheduler = "sed"
	_, err := New(context.Background(), o)
	require.EqualError(t, err, "ipvs: the kernel has no IPVS scheduler sed: "+
		"load the module ip_vs_sed (modprobe ip_vs_sed)")
	var missing *dp.MissingModuleError
	require.True(t, errors.As(err, &missing))
}

// Two processes that start at the same time look for the scheduler with the same virtual server.
func TestASchedulerIsFoundWhileAnotherProcessLooksForIt(t *testing.T) {
	k := newKernel(t)
	const probe = "virtual server IPv4 mark 0x7fffffff"
	for _, call := range []string{"add " + probe, "delete " + probe} {
		failed := false
		k.ipvs.SetFail(func(c string) error {
			if c != call || failed {
				return nil
			}
			if failed = true; strings.HasPrefix(c, "add") {
				return syscall.EEXIST // and the other one deletes it
			}
			return syscall.ESRCH
		})
		k.start(t)
		require.True(t, failed)
	}
}

// The first Sync deletes what an earlier process has left when it died.
func TestOnlyOurVirtualServerOfAMarkGoes(t *testing.T) {
	k := newKernel(t)
	probe := dp.ServerKey{Family: model.IPv4, Mark: 0x7fffffff}
	addServer(t, k, dp.Server{ServerKey: probe, Scheduler: "wrr"}, pod1)
	foreign := k.ipvs.Dump()
	probe.Mark--
	addServer(t, k, dp.Server{ServerKey: probe, Scheduler: "rr", Flags: dp.Owned})
	put(t, k.start(t))
	require.Equal(t, foreign, k.ipvs.Dump())
}

// Scheduler sh is for a corner of session affinity only: a kernel without it serves everything else.
func TestAKernelWithoutSourceHashingServesWithoutAffinityByMark(t *testing.T) {
	k := newKernel(t)
	k.ipvs.Schedulers = []string{"rr"}
	b := k.start(t)
	service := fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("198.51.100.1").Port("http", 80).
		ExternalLocal().DetectsLocalPods().Affinity(time.Hour).Build()
	put(t, b, backendtest.Node(), service, fm.Endpoint("default/web:http/TCP", pod1.String()).Build())
	require.Regexp(t, `(?m)^-A -f \d+ -s rr -b flag-3$`, k.ipvs.Dump())
	require.Contains(t, k.ipvs.Dump(), "-A -t 198.51.100.1:80 -s rr -p 3600 -b flag-3\n")
}

func TestAnExternalIPThatIsTheNodesOwnIsNotPutOnTheDummyInterface(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("192.0.2.10").Port("http", 80).Build(),
		fm.Endpoint("default/web:http/TCP", pod1.String()).Build())
	require.NotContains(t, k.ipvs.Dump(), "address 192.0.2.10")
	require.Contains(t, k.ipvs.Dump(), "-A -t 192.0.2.10:80")
	require.NotContains(t, k.table(model.IPv4), "192.0.2.10 }", "its other ports are the node's")
}

func TestAnAddressThatTheHostGainsOrLosesIsFollowedAtOnce(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	without := k.sorted(model.IPv4)
	host, err := k.host.Addresses()
	require.NoError(t, err)
	own := func() bool { return !strings.Contains(k.ipvs.Dump(), "address 10.96.0.10") }
	require.False(t, own())
	k.host.Set(append(host, nodeaddr.HostAddress{Addr: netip.MustParseAddr("10.96.0.10"), Interface: "eth0"})...)
	require.Eventually(t, own, time.Minute, time.Millisecond)
	k.host.Set(host...)
	require.Eventually(t, func() bool { return !own() && k.sorted(model.IPv4) == without }, time.Minute,
		time.Millisecond)
}

func TestAddressesAreGuardedForAsLongAsTheyAreThere(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	guarded := func() bool {
		table, err := k.nft.ReadTable(t.Context(), nft.TableKey{Family: model.IPv4, Name: tableName}, nil)
		require.NoError(t, err)
		return table != nil && len(table.Sets["bound-ips"].Elements) == 1
	}
	checked := 0
	k.ipvs.SetFail(func(call string) error {
		if call == "add address 10.96.0.10" || call == "delete address 10.96.0.10" {
			checked++
			require.True(t, guarded(), call)
		}
		return nil
	})
	put(t, b, web()...)
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	put(t, b)
	require.Equal(t, 2, checked)
	require.False(t, guarded())
}

func TestParametersAndTimeouts(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, func(o *Options) {
		o.StrictARP = true
		o.Timeouts = Timeouts{TCP: 900e9, UDP: 60e9}
	})
	require.Equal(t, "0", k.sysctl(t, "net/ipv4/vs/conntrack"), "nothing before Sync")
	put(t, b)
	for name, value := range map[string]string{"net/ipv4/vs/conntrack": "1", "net/ipv4/vs/expire_nodest_conn": "1",
		"net/ipv4/vs/expire_quiescent_template": "1", "net/ipv4/conf/all/arp_ignore": "1",
		"net/ipv4/conf/all/arp_announce": "2", "net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "0"} {
		require.Equal(t, value, k.sysctl(t, name), name)
	}
	require.Equal(t, dp.Timeouts{TCP: 900e9, UDP: 60e9}, k.ipvs.Timeouts())
}

// Without IPv6 forwarding everything is applied; the log says once in each full comparison what is missing.
func TestMissingIPv6ForwardingIsLogged(t *testing.T) {
	for value, want := range map[string]int{"0\n": 1, "1\n": 0, "2\n": 0} {
		k := newKernel(t)
		require.NoError(t, os.WriteFile(filepath.Join(k.root, "proc/sys", forwardIPv6), []byte(value), 0o600))
		var lines atomic.Int32
		log := funcr.New(func(_, args string) {
			if strings.Contains(args, forwardIPv6) {
				lines.Add(1)
			}
		}, funcr.Options{})
		b := k.start(t)
		backendtest.Set(t, b, web()...)
		for range 3 {
			require.NoError(t, b.Sync(klog.NewContext(t.Context(), log)))
		}
		require.EqualValues(t, want, lines.Load(), value)
	}
}

// A node whose parameters are read-only serves its own clients.
func TestAParameterThatCannotBeSetFailsNothingIfConnectionsAreTracked(t *testing.T) {
	k := newKernel(t)
	require.NoError(t, os.Remove(filepath.Join(k.root, "proc/sys/net/ipv4/ip_forward")))
	err := SetParameters(t.Context(), sysctl.Root(k.root), false)
	require.ErrorContains(t, err, "sysctl net/ipv4/ip_forward has no value and cannot be set to 1")
	put(t, k.start(t), web()...)
	require.Contains(t, k.ipvs.Dump(), "-t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1")
}

// The largest depends on the kernel's configuration.
func TestTimeoutsThatTheKernelRefusesDoNotKeepServicesFromBeingServed(t *testing.T) {
	k := newKernel(t)
	k.ipvs.SetFail(failOn("set timeouts", syscall.EINVAL))
	b := k.start(t, func(o *Options) { o.Timeouts = Timeouts{TCP: 1 << 62} })
	put(t, b, web()...)
	require.Contains(t, k.ipvs.Dump(), "-t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1")
}

func TestMaglevHashesThePort(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, func(o *Options) { o.Scheduler = "mh" })
	put(t, b, web()...)
	require.Contains(t, k.ipvs.Dump(), "-A -t 10.96.0.10:80 -s mh -b mh-port\n")
}

func TestCleanUpUpstreamLeavesVirtualServersTakenOverAndThoseOfOthers(t *testing.T) {
	k := newKernel(t)
	for _, a := range []string{"10.96.0.10:80", "10.96.0.99:80", "192.0.2.10:30080", "192.0.2.10:80", "172.16.0.1:80",
		"10.96.7.7:80"} {
		addServer(t, k, dp.Server{ServerKey: key(a, model.TCP), Scheduler: "rr"})
	}
	put(t, k.start(t), web()...)
	// The fake has one dummy interface; upstream's has addresses of its own.
	upstream := dp.NewFake()
	for _, a := range []string{"10.96.0.10", "10.96.0.99", "10.96.7.7"} {
		require.NoError(t, upstream.AddAddress(t.Context(), netip.MustParseAddr(a)))
	}
	require.NoError(t, CleanUpUpstream(t.Context(), withLinks{k.ipvs, upstream},
		Options{ExcludeCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.7.0/24")}},
		[]netip.Addr{netip.MustParseAddr("192.0.2.10")}))
	dump := k.ipvs.Dump()
	for _, stays := range []string{"-t 10.96.0.10:80 -s rr -b flag-3\n", "-t 192.0.2.10:80", "-t 172.16.0.1:80",
		"-t 10.96.7.7:80"} {
		require.Contains(t, dump, stays)
	}
	require.NotContains(t, dump, "10.96.0.99")
	require.NotContains(t, dump, "30080")
	require.False(t, upstream.HasLink())
}

// With kube-proxy's interface as its own, a backend keeps the interface and what it has taken over there.
func TestCleanUpUpstreamKeepsTheInterfaceOfTheBackend(t *testing.T) {
	k := newKernel(t)
	for _, a := range []string{"10.96.0.10:80", "10.96.0.10:81"} {
		addServer(t, k, dp.Server{ServerKey: key(a, model.TCP), Scheduler: "rr"})
	}
	put(t, k.start(t, func(o *Options) { o.Link = "kube-ipvs0" }), web()...)
	want := k.ipvs.Dump()
	require.Contains(t, want, "-t 10.96.0.10:81")
	require.NoError(t, CleanUpUpstream(t.Context(), k.ipvs, Options{Link: "kube-ipvs0"}, nil))
	require.Equal(t, strings.Replace(want, "-A -t 10.96.0.10:81 -s rr\n", "", 1), k.ipvs.Dump())
	require.True(t, k.ipvs.HasLink())
}

// Upstream's process may still run, and delete the same.
func TestCleanUpUpstreamIgnoresObjectsThatAreAlreadyGone(t *testing.T) {
	k := newKernel(t)
	addServer(t, k, dp.Server{ServerKey: key("10.96.0.10:80", model.TCP), Scheduler: "rr"})
	require.NoError(t, k.ipvs.AddAddress(t.Context(), netip.MustParseAddr("10.96.0.10")))
	k.ipvs.SetFail(failOn("delete virtual server", syscall.ESRCH))
	require.NoError(t, CleanUpUpstream(t.Context(), k.ipvs, Options{}, nil))
	require.False(t, k.ipvs.HasLink())
}

// withLinks is IPVS of one kernel and the dummy interface of another.
type withLinks struct {
	dp.Interface
	links dp.Interface
}

func (w withLinks) Addresses(ctx context.Context, f model.Family) ([]netip.Addr, error) {
	return w.links.Addresses(ctx, f)
}

func (w withLinks) DeleteLink(ctx context.Context) error { return w.links.DeleteLink(ctx) }

// A restart finds virtual servers of node ports whose service has gone: their address is the node's own.
func TestANodePortOfAServiceThatHasGoneDoesNotGuardTheNodesOwnAddress(t *testing.T) {
	k := newKernel(t)
	nodePort := dp.Server{ServerKey: key("192.0.2.10:30080", model.TCP), Scheduler: "rr", Flags: dp.Owned}
	addServer(t, k, nodePort, pod1)
	k.ipvs.SetConnections(nodePort.ServerKey, pod1, 1, 0)
	k.ipvs.SetFail(func(call string) error {
		require.NotContains(t, call, "address 192.0.2.10")
		return nil
	})
	b := k.start(t)
	put(t, b, web()...)
	require.Contains(t, k.ipvs.Dump(), "-A -t 192.0.2.10:30080 -s rr -b flag-3\n"+
		"-a -t 192.0.2.10:30080 -r 10.244.1.5:8080 -m -w 0\n")
	require.NotContains(t, k.table(model.IPv4), "192.0.2.10 }")
	require.NotContains(t, k.table(model.IPv4), "192.0.2.10,")
}

// Somebody deletes the endpoints of a virtual server that has gone and drains: nothing is left to wait for.
func TestADrainingEndpointDeletedByAnotherProgramIsForgotten(t *testing.T) {
	for _, resync := range []bool{false, true} {
		k := newKernel(t)
		b := k.start(t)
		put(t, b, web()...)
		tcp := key("10.96.0.10:80", model.TCP)
		k.ipvs.SetConnections(tcp, pod1, 1, 0)
		b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
		put(t, b)
		require.NoError(t, k.ipvs.DeleteDestination(t.Context(), tcp, pod1))
		require.NoError(t, k.ipvs.DeleteDestination(t.Context(), tcp, pod2))
		if resync {
			b.ForceResync()
			put(t, b)
		}
		b.drain(t, model.IPv4)
		require.Empty(t, k.ipvs.Dump())
	}
}

// Another program runs "ipvsadm -C", "ip link delete" and "nft flush ruleset".
func TestEverythingFlushedByAnotherProgramIsRestored(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	before, table := k.ipvs.Dump(), k.table(model.IPv4)
	servers, err := k.ipvs.Servers(t.Context())
	require.NoError(t, err)
	for _, s := range servers {
		require.NoError(t, k.ipvs.DeleteServer(t.Context(), s.ServerKey))
	}
	require.NoError(t, k.ipvs.DeleteLink(t.Context()))
	tx := nft.NewTransaction(nft.TableKey{Family: model.IPv4, Name: tableName})
	tx.DeleteTable()
	require.NoError(t, k.nft.ApplyUnnoticed(tx))

	b.ForceResync()
	put(t, b)
	require.Equal(t, before, k.ipvs.Dump())
	require.Equal(t, table, k.table(model.IPv4))

	k.ipvs.TakeCalls()
	b.ForceResync()
	put(t, b)
	require.Empty(t, k.ipvs.TakeCalls().Writes)
}

// Between two resyncs a change meets what is no longer there, or there already: that virtual server is read again.
func TestAChangeToObjectsThatOthersHaveChangedRepairsThem(t *testing.T) {
	tcp, pod3 := key("10.96.0.10:80", model.TCP), netip.MustParseAddrPort("10.244.3.5:8080")
	for name, change := range map[string]func(*kernel) error{
		"deleted": func(k *kernel) error { return k.ipvs.DeleteServer(t.Context(), tcp) },
		"endpoint": func(k *kernel) error {
			return k.ipvs.AddDestination(t.Context(), tcp, dp.Destination{Target: pod3})
		},
	} {
		t.Run(name, func(t *testing.T) { testAChangeToObjects(t, pod3, change) })
	}
}

func testAChangeToObjects(t *testing.T, pod3 netip.AddrPort, change func(*kernel) error) {
	t.Helper()
	k := newKernel(t)
	b := k.start(t)
	put(t, b, web()...)
	require.NoError(t, change(k))
	k.ipvs.TakeCalls()
	put(t, b, fm.Endpoint("default/web:http/TCP", pod3.String()).Build())
	require.Len(t, k.ipvs.TakeCalls().Reads, 1)
	require.Contains(t, k.ipvs.Dump(), `-A -t 10.96.0.10:80 -s rr -b flag-3
-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1
-a -t 10.96.0.10:80 -r 10.244.2.5:8080 -m -w 1
-a -t 10.96.0.10:80 -r 10.244.3.5:8080 -m -w 1
`)
}

func TestADeletedServiceIsNoLongerReportedForAForeignVirtualServer(t *testing.T) {
	k := newKernel(t)
	addServer(t, k, dp.Server{ServerKey: key("10.96.0.10:80", model.TCP), Scheduler: "rr"}, pod1)
	b := k.start(t, func(o *Options) { o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.10/32")} })
	backendtest.Set(t, b, web()...)
	require.Len(t, sink.PortErrors(b.Sync(t.Context())), 1)
	require.Len(t, sink.PortErrors(b.Sync(t.Context())), 1, "for as long as it is so")
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	put(t, b)
	require.Equal(t, "-A -t 10.96.0.10:80 -s rr\n-a -t 10.96.0.10:80 -r 10.244.1.5:8080 -m -w 1\n", k.ipvs.Dump())
}

func TestARestartAdoptsPersistence(t *testing.T) {
	k := newKernel(t)
	service := func(d time.Duration) *model.Service {
		return fm.Service("default/web").ClusterIP("10.96.0.10").Affinity(d).Port("http", 80).Build()
	}
	ep := fm.Endpoint("default/web:http/TCP", pod1.String()).Build()
	put(t, k.start(t), service(time.Hour), ep)
	require.Contains(t, k.ipvs.Dump(), "-s rr -p 3600 -b flag-3")

	b := k.start(t)
	put(t, b, service(time.Hour), ep)
	require.Empty(t, k.ipvs.TakeCalls().Writes)
	// A change of the timeout keeps the connections, and which client is at which endpoint.
	put(t, b, service(90*time.Minute))
	require.Equal(t, []string{"change virtual server 10.96.0.10:80/TCP"}, k.ipvs.TakeCalls().Writes)
	require.Contains(t, k.ipvs.Dump(), "-s rr -p 5400 -b flag-3")
}

// A service that comes later is like one that was there at the start: Sync does not have to fail first.
func TestAServiceThatComesLaterTakesOverTheVirtualServerOfUpstream(t *testing.T) {
	k := newKernel(t)
	tcp := key("10.96.0.10:80", model.TCP)
	addServer(t, k, dp.Server{ServerKey: tcp, Scheduler: "rr"}, pod1)
	b := k.start(t)
	put(t, b)
	k.ipvs.SetConnections(tcp, pod1, 3, 0)
	k.ipvs.TakeCalls()
	put(t, b, web()...)
	require.Contains(t, k.ipvs.Dump(), "-A -t 10.96.0.10:80 -s rr -b flag-3\n-a -t 10.96.0.10:80 -r 10.244.1.5:8080")
	writes := k.ipvs.TakeCalls().Writes
	require.Contains(t, writes, "change virtual server 10.96.0.10:80/TCP")
	require.NotContains(t, writes, "add endpoint 10.244.1.5:8080 to 10.96.0.10:80/TCP")
}

// When another attempt is due for a service port that failed, the reason is checked again, at a cost that depends on
// such ports alone.
func TestAServiceIsServedOnceTheForeignVirtualServerIsGone(t *testing.T) {
	k := newKernel(t)
	var taken []dp.ServerKey
	for _, a := range []string{"203.0.113.1:80", "203.0.113.2:80"} {
		taken = append(taken, key(a, model.TCP))
		addServer(t, k, dp.Server{ServerKey: key(a, model.TCP), Scheduler: "rr"}, pod1)
	}
	b := k.start(t, func(o *Options) { o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} })
	backendtest.Set(t, b,
		fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("203.0.113.1", "203.0.113.2").Port("http", 80).Build(),
		fm.Endpoint("default/web:http/TCP", pod2.String()).Build())
	require.Len(t, sink.PortErrors(b.Sync(t.Context())), 1)
	before := k.ipvs.Dump()
	b.ResyncFailed()
	require.Len(t, sink.PortErrors(b.Sync(t.Context())), 1)
	require.Equal(t, before, k.ipvs.Dump(), "they are still somebody else's")

	require.NoError(t, k.ipvs.DeleteServer(t.Context(), taken[0]))
	k.ipvs.TakeCalls()
	b.ResyncFailed()
	err := b.Sync(t.Context())
	require.ErrorContains(t, err, "203.0.113.2:80/TCP is a virtual server of another program")
	require.NotContains(t, err.Error(), "203.0.113.1")
	require.Contains(t, k.ipvs.Dump(),
		"-A -t 203.0.113.1:80 -s rr -b flag-3\n-a -t 203.0.113.1:80 -r 10.244.2.5:8080 -m -w 1\n")
	require.Zero(t, k.ipvs.TakeCalls().Reads)

	require.NoError(t, k.ipvs.DeleteServer(t.Context(), taken[1]))
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	dump, table := k.ipvs.Dump(), k.table(model.IPv4)
	b.ForceResync()
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, dump, k.ipvs.Dump(), "as if nobody had ever been in the way")
	require.Equal(t, table, k.table(model.IPv4))
}

// The runner logs the error of a service port once, until it changes: there is one for each port, always the same.
func TestAServicePortThatSeveralVirtualServersOfOthersKeepFromBeingServedHasOneError(t *testing.T) {
	k := newKernel(t)
	for _, a := range []string{"203.0.113.1:80", "203.0.113.2:80"} {
		addServer(t, k, dp.Server{ServerKey: key(a, model.TCP), Scheduler: "rr"}, pod1)
	}
	b := k.start(t, func(o *Options) { o.ExcludeCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} })
	b.SetService(fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("203.0.113.1", "203.0.113.2").
		Port("http", 80).Build())
	err := b.Sync(t.Context())
	require.Equal(t, []string{"default/web:http/TCP"}, failedPorts(t, err))
	require.ErrorContains(t, err, "203.0.113.1:80/TCP is a virtual server of another program\n"+
		"203.0.113.2:80/TCP is a virtual server of another program")
}
