package ipvs

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// external is a service whose external addresses serve different endpoints to different sources if the policy is Local.
func external(local bool) *model.Service {
	b := fm.Service("default/outside").DetectsLocalPods().ClusterIP("10.96.0.20").ExternalIP("203.0.113.20").
		Port("http", 80)
	if local {
		b.ExternalLocal()
	}
	return b.Build()
}

// sorted returns the lines of the table of a family, whose chains are in the order in which they were made.
func (k *kernel) sorted(f model.Family) string {
	lines := strings.Split(k.table(f), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func externalEndpoints() []any {
	return []any{fm.Endpoint("default/outside:http/TCP", pod1.String()).Local().Build(),
		fm.Endpoint("default/outside:http/TCP", pod2.String()).Build()}
}

// The names of two ports may have the same hash: then the one that comes later has another mark.
func TestTwoPortsNeverHaveTheSameMark(t *testing.T) {
	free := newPorts(nil, newServers(), nil)
	free.config = &config{mark: 1 << 14, marks: defaultMarks}
	names, first, second := map[uint32]string{}, "", ""
	for i := 0; second == ""; i++ {
		service := model.ServiceName{Namespace: "default", Name: fmt.Sprint("web-", i)}
		clear(free.marked)
		m := free.newMark(model.PortName{Service: service, Port: "http", Protocol: model.TCP})
		if names[m] != "" {
			first, second = names[m], service.String()
		}
		names[m] = service.String()
	}
	k := newKernel(t)
	b := k.start(t)
	put(t, b, backendtest.Node())
	add := func(service, clusterIP, externalIP string) (marks int) {
		put(t, b, fm.Service(service).DetectsLocalPods().ClusterIP(clusterIP).ExternalIP(externalIP).Port("http", 80).
			ExternalLocal().Build(),
			fm.Endpoint(service+":http/TCP", pod1.String()).Local().Build(),
			fm.Endpoint(service+":http/TCP", pod2.String()).Build())
		return strings.Count(k.ipvs.Dump(), "-A -f ")
	}
	one := add(first, "10.96.0.1", "203.0.113.1")
	require.NotZero(t, one)
	require.Equal(t, 2*one, add(second, "10.96.0.2", "203.0.113.2"))
	require.Equal(t, 2*one, add(second, "10.96.0.2", "203.0.113.3"), "it keeps its own")
	b.DeleteService(fm.Service(first).Build().Name)
	put(t, b)
	require.Equal(t, one, strings.Count(k.ipvs.Dump(), "-A -f "))
	require.Contains(t, k.table(model.IPv4), "chain "+markPrefix)
}

// The chains that set a port's marks go with the last that goes to them, not at the next resync.
func TestTheChainsOfMarksGoWithTheirPort(t *testing.T) {
	for name, leave := range map[string]func(*testing.T, *Backend){
		"its policy is no longer Local": func(t *testing.T, b *Backend) { put(t, b, external(false)) },
		"its service goes": func(t *testing.T, b *Backend) {
			b.DeleteService(external(true).Name)
			require.NoError(t, b.Sync(t.Context()))
			put(t, b, append(externalEndpoints(), external(false))...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newKernel(t)
			b := k.start(t)
			put(t, b, append(append(web(), externalEndpoints()...), backendtest.Node(), external(false))...)
			without := k.sorted(model.IPv4)
			require.NotContains(t, without, markPrefix)
			put(t, b, external(true))
			with := k.sorted(model.IPv4)
			require.Contains(t, with, "chain "+markPrefix)
			require.Contains(t, with, "chain pod-"+markPrefix)
			for range 2 {
				leave(t, b)
				require.Equal(t, without, k.sorted(model.IPv4))
				put(t, b, external(true))
				require.Equal(t, with, k.sorted(model.IPv4), "the same marks again")
			}
		})
	}
}

func TestTheChainsOfMarksGoWhenTheirRoutesChange(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(externalEndpoints(), backendtest.Node(), external(true))...)
	with := k.sorted(model.IPv4)
	b.DeleteEndpoint(externalEndpoints()[0].(*model.Endpoint).Key())
	require.NoError(t, b.Sync(t.Context()))
	table := k.sorted(model.IPv4)
	require.Contains(t, table, "other-"+rules.DropChain, "others have no endpoint")
	require.NotContains(t, table, "other-"+keepChain)
	put(t, b, externalEndpoints()[0])
	require.Equal(t, with, k.sorted(model.IPv4))
}

func TestChainsOfMarksAreDeletedWhenEverythingIsDescribedAgain(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(externalEndpoints(), backendtest.Node(), external(true))...)
	node := backendtest.Node()
	node.LocalPods = model.LocalPods{Bridge: "cni0"}
	put(t, b, node, external(false))
	require.NotContains(t, k.table(model.IPv4), markPrefix)
}

// Before Linux 6.2 a chain counts as used for a while after the last that went to it has gone.
func TestChainsThatAreStillUsedGoLater(t *testing.T) {
	k := newKernel(t)
	b := k.start(t)
	put(t, b, append(externalEndpoints(), backendtest.Node(), external(false))...)
	without := k.sorted(model.IPv4)
	put(t, b, external(true))
	k.nft.FailApply = func(tx *nft.Transaction) error {
		if strings.Contains(tx.Text(), "delete chain") {
			return &nft.OpError{Table: tx.Table, Op: "delete chain", Err: syscall.EBUSY}
		}
		return nil
	}
	put(t, b, external(false))
	require.Contains(t, k.sorted(model.IPv4), "chain "+markPrefix)
	k.nft.FailApply = nil
	b.drain(t, model.IPv4)
	require.Equal(t, without, k.sorted(model.IPv4))
}

// policyLocal is a service that needs a mark, with an endpoint on this node and another elsewhere.
func policyLocal(n int) []any {
	name := fmt.Sprintf("default/local-%d", n)
	return []any{fm.Service(name).DetectsLocalPods().ClusterIP(fmt.Sprintf("10.96.1.%d", n)).
		ExternalIP(fmt.Sprintf("203.0.113.%d", n)).Port("http", 80).ExternalLocal().Build(),
		fm.Endpoint(name+":http/TCP", pod1.String()).Local().Build(),
		fm.Endpoint(name+":http/TCP", pod2.String()).Build()}
}

// withFewMarks has 255 marks, beside the bit of S63, and another masquerade mark than by default.
func withFewMarks(o *Options) { o.Marks, o.MasqueradeMark = 1<<30|0xf00f<<8, 1<<31 }

func TestMarksAreMadeOfTheGivenBits(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, withFewMarks)
	put(t, b, backendtest.Node())
	seen := map[uint32]bool{}
	for n := range 100 {
		put(t, b, policyLocal(n)...)
	}
	list, err := k.ipvs.Servers(t.Context())
	require.NoError(t, err)
	for _, s := range list {
		if s.Mark != 0 {
			require.Zero(t, s.Mark&^(0xf00f<<8|1<<31), "%#x", s.Mark)
			require.False(t, seen[s.Mark])
			seen[s.Mark] = true
		}
	}
	require.Len(t, seen, 200, "one for pods and one for the node")
}

// Services that get no mark fail alone, are served without, and get one when another service goes.
func TestWhenMarksRunOutOnlyTheServicesThatGetNoneFail(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, withFewMarks)
	put(t, b, backendtest.Node())
	for n := range 254 {
		backendtest.Set(t, b, policyLocal(n)...)
	}
	require.NoError(t, b.Sync(t.Context()))
	backendtest.Set(t, b, policyLocal(254)...)
	require.NoError(t, b.Sync(t.Context()), "2^8-1 marks")
	want := k.ipvs.Dump()
	backendtest.Set(t, b, policyLocal(255)...)
	err := b.Sync(t.Context())
	require.Equal(t, []string{"default/local-255:http/TCP"}, failedPorts(t, err))
	require.ErrorContains(t, err,
		"no packet mark is left: other service ports and programs have those of Options.Marks 0x40f00f00")
	dump := k.ipvs.Dump()
	for line := range strings.Lines(want) {
		require.Contains(t, dump, line, "everybody else is served as before")
	}
	require.Contains(t, dump, "-a -t 203.0.113.255:80 -r "+pod1.String())

	k.ipvs.TakeCalls()
	b.ResyncFailed()
	require.Equal(t, []string{"default/local-255:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	require.Zero(t, k.ipvs.TakeCalls(), "there is still none")

	b.DeleteService(policyLocal(7)[0].(*model.Service).Name)
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, 2*255, strings.Count(k.ipvs.Dump(), "-A -f "))
	b.DeleteService(policyLocal(255)[0].(*model.Service).Name)
	put(t, b, policyLocal(7)...)
	require.Equal(t, want, k.ipvs.Dump())
}

// A port that has no mark, and an endpoint that was refused, gets both at a retry.
func TestARetryGivesAPortItsMarkAndItsEndpoint(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, withFewMarks)
	put(t, b, backendtest.Node())
	for n := range 255 {
		backendtest.Set(t, b, policyLocal(n)...)
	}
	require.NoError(t, b.Sync(t.Context()))
	k.ipvs.SetFail(failOn("add endpoint "+pod2.String()+" to 10.96.1.255:80/TCP", syscall.EINVAL))
	backendtest.Set(t, b, policyLocal(255)...)
	failedPorts(t, b.Sync(t.Context()))
	k.ipvs.SetFail(nil)
	b.DeleteService(policyLocal(7)[0].(*model.Service).Name)
	b.ResyncFailed()
	put(t, b)
	require.Contains(t, k.ipvs.Dump(), "-a -t 10.96.1.255:80 -r "+pod2.String())
	require.Equal(t, 2*255, strings.Count(k.ipvs.Dump(), "-A -f "))
}

// A port that has a mark keeps it, whatever else comes and goes.
func TestAPortKeepsItsMarkWhenItChanges(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, withFewMarks)
	put(t, b, backendtest.Node())
	for n := range 255 {
		backendtest.Set(t, b, policyLocal(n)...)
	}
	require.NoError(t, b.Sync(t.Context()))
	want, table := k.ipvs.Dump(), k.sorted(model.IPv4)
	for n := range 20 {
		s := policyLocal(n)[0].(*model.Service)
		s.SessionAffinityTimeout = 3600e9
		put(t, b, s)
	}
	for n := range 20 {
		put(t, b, policyLocal(n)[0])
	}
	require.Equal(t, want, k.ipvs.Dump())
	require.Equal(t, table, k.sorted(model.IPv4))
}

// Virtual servers that a process with other marks has left go, except those that still have connections.
func TestAfterARestartWithOtherMarksTheOldOnesGo(t *testing.T) {
	k := newKernel(t)
	put(t, k.start(t), append(policyLocal(1), backendtest.Node())...)
	before := k.sorted(model.IPv4)
	put(t, k.start(t, withFewMarks), append(policyLocal(1), backendtest.Node())...)
	require.Equal(t, 2, strings.Count(k.ipvs.Dump(), "-A -f "))
	require.NotEqual(t, before, k.sorted(model.IPv4))
	fresh := newKernel(t)
	put(t, fresh.start(t, withFewMarks), append(policyLocal(1), backendtest.Node())...)
	require.Equal(t, fresh.ipvs.Dump(), k.ipvs.Dump())
	require.Equal(t, fresh.sorted(model.IPv4), k.sorted(model.IPv4))
}

// serversByMark returns the virtual servers by mark, as a dump has them, whose flags say that they are another
// program's or the backend's.
func serversByMark(t *testing.T, k *kernel) (foreign, own []uint32) {
	t.Helper()
	list, err := k.ipvs.Servers(t.Context())
	require.NoError(t, err)
	for _, s := range list {
		switch {
		case s.Mark == 0:
		case s.Flags&dp.Owned == 0:
			foreign = append(foreign, s.Mark)
		default:
			own = append(own, s.Mark)
		}
	}
	return foreign, own
}

// Another program's virtual servers have the marks that a service would get: it gets others, whether they were there
// first or appear before the service does, and after a restart. They stay as they are.
func TestVirtualServersOfOthersByMarkAreNeverTakenOver(t *testing.T) {
	probe := newKernel(t)
	put(t, probe.start(t), append(policyLocal(1), backendtest.Node())...)
	_, wanted := serversByMark(t, probe)
	require.Len(t, wanted, 2, "for pods, and for the node")
	for name, marks := range map[string][]uint32{"for pods": wanted[:1], "for the node": wanted[1:], "both": wanted} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, there first: %v", name, first), func(t *testing.T) {
				k := newKernel(t)
				other := func() {
					for _, m := range marks {
						addServer(t, k, dp.Server{ServerKey: dp.ServerKey{Family: model.IPv4, Mark: m}, Scheduler: "wrr"}, pod1)
					}
				}
				if first {
					other()
				}
				b := k.start(t)
				put(t, b, backendtest.Node())
				if !first {
					other()
				}
				foreign := k.ipvs.Dump()
				check := func() {
					t.Helper()
					theirs, own := serversByMark(t, k)
					require.ElementsMatch(t, marks, theirs)
					require.Len(t, own, 2, "the service has marks of its own")
					for _, m := range own {
						require.NotContains(t, marks, m)
						require.Contains(t, k.table(model.IPv4), fmt.Sprintf("chain %s%08x", markPrefix, m))
					}
					for _, m := range marks {
						require.NotContains(t, k.table(model.IPv4), fmt.Sprintf("%s%08x", markPrefix, m), "no packet goes there")
					}
				}
				put(t, b, policyLocal(1)...)
				check()
				b.ResyncFailed()
				b.ForceResync()
				put(t, b)
				check()
				put(t, k.start(t), append(policyLocal(1), backendtest.Node())...)
				check()
				b.DeleteService(policyLocal(1)[0].(*model.Service).Name)
				put(t, b)
				put(t, k.start(t))
				require.Equal(t, foreign, k.ipvs.Dump())
			})
		}
	}
}

// With all marks another program's, the service is served without.
func TestWhenOthersHaveAllMarksTheServiceFails(t *testing.T) {
	k := newKernel(t)
	b := k.start(t, withFewMarks)
	put(t, b, backendtest.Node())
	for m := uint32(1); m < 1<<24; m++ {
		if m&^uint32(0xf00f<<8) == 0 {
			addServer(t, k, dp.Server{ServerKey: dp.ServerKey{Family: model.IPv4, Mark: m}, Scheduler: "wrr"})
		}
	}
	foreign, _ := serversByMark(t, k)
	require.Len(t, foreign, 255)
	backendtest.Set(t, b, policyLocal(1)...)
	require.Equal(t, []string{"default/local-1:http/TCP"}, failedPorts(t, b.Sync(t.Context())))
	theirs, own := serversByMark(t, k)
	require.ElementsMatch(t, foreign, theirs)
	require.Empty(t, own)
	require.Contains(t, k.ipvs.Dump(), "-a -t 203.0.113.1:80 -r "+pod1.String())
}
