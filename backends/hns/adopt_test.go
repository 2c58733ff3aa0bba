package hns

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

func foreignKey() dp.Key {
	return dp.Key{Family: model.IPv4, Addr: netip.MustParseAddr("172.16.0.1"), Port: 80, Protocol: model.TCP}
}

func TestLoadBalancersOfOthersAreLeftAlone(t *testing.T) {
	m := newMachine(t)
	pod := m.addPod("10.244.1.30")
	m.hns.AddLoadBalancer(dp.LoadBalancer{Key: foreignKey(), TargetPort: 80, Endpoints: []string{pod}})
	before := m.hns.Dump()
	b := m.start(t)
	put(t, b, web()...)
	b.ForceResync()
	require.NoError(t, b.Sync(t.Context()))
	require.False(t, b.repair(t))
	require.NoError(t, b.CleanUp(t.Context()))
	require.Equal(t, before, m.hns.Dump())
}

// Upstream kube-proxy leaves them when it ends.
func TestALoadBalancerAtTheAddressOfAServiceIsTakenOver(t *testing.T) {
	m := newMachine(t)
	pod := m.addPod("10.244.1.30")
	m.hns.AddLoadBalancer(dp.LoadBalancer{Key: webKey(), TargetPort: 8080, Endpoints: []string{pod}})
	put(t, m.start(t), web()...)
	require.Contains(t, m.hns.Dump(),
		"load balancer 10.96.0.10:80/TCP -> 8080 of 10.244.1.5,fd00:244:1::5, 10.244.2.5\n")
	require.NotContains(t, m.writes(), "delete load balancer 10.96.0.10:80/TCP", "its connections stay")
}

func TestServicesDeletedWhileNoProcessRanAreRemoved(t *testing.T) {
	m := newMachine(t)
	before := m.hns.Dump()
	put(t, m.start(t), web()...)
	put(t, m.start(t), backendtest.Node())
	require.Equal(t, before, m.hns.Dump())
}

func TestWithoutARecordOnlyAddressesOfServicesAreOurs(t *testing.T) {
	m := newMachine(t)
	m.record = ""
	put(t, m.start(t), web()...)
	put(t, m.start(t), backendtest.Node())
	require.Contains(t, m.hns.Dump(), "load balancer 10.96.0.10:80/TCP")
	put(t, m.start(t), web()...)
	require.Equal(t, 1, m.hns.NumLoadBalancers())
	require.Empty(t, m.writes())
}

// The process may die between any two calls: what it created is in the record already.
func TestALoadBalancerIsRecordedBeforeItIsCreated(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	m.hns.SetFail(func(call string) error {
		if strings.HasPrefix(call, "create load balancer") {
			text, err := os.ReadFile(m.record)
			require.NoError(t, err)
			require.Equal(t, "+ IPv4 10.96.0.10 80 TCP\n", string(text))
		}
		return nil
	})
	put(t, b, web()...)
	m.hns.SetFail(nil)
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(t.Context()))
	text, err := os.ReadFile(m.record)
	require.NoError(t, err)
	require.Equal(t, "+ IPv4 10.96.0.10 80 TCP\n- IPv4 10.96.0.10 80 TCP\n", string(text))
}

func TestARecordThatCannotBeWrittenFailsBeforeAnythingIsCreated(t *testing.T) {
	m := newMachine(t)
	m.record += "/no/such/directory"
	b := m.start(t)
	backendtest.Set(t, b, web()...)
	require.ErrorContains(t, b.Sync(t.Context()), "load-balancer record")
	require.Zero(t, m.hns.NumLoadBalancers())
}

// A loss of power leaves blocks of zeros, or parts of lines. What is left of the record counts.
func TestDamagedLinesOfTheRecordAreSkipped(t *testing.T) {
	for name, damage := range map[string]string{
		"zeros": "\x00\x00\x00\x00\n", "zeros without an end": strings.Repeat("\x00", 4096),
		"zeros before a line": "\x00\x00+ IPv4 10.96.0.9 80 TCP\n", "a part of a line": "6.0.10 80 TCP\n",
		"two parts of lines": "+ IPv4 10.9+ IPv4 10.96.0.11 80 TCP\n", "not UTF-8": "+ IPv4 \xff\xfe 80 TCP\n",
		"text":          "hello\n",
		"an empty line": "\n", "without a sign": "IPv4 10.96.0.9 80 TCP\n",
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			require.NoError(t, os.WriteFile(m.record, []byte("+ IPv4 172.16.0.1 80 TCP\n"+damage), 0o600))
			pod := m.addPod("10.244.1.30")
			m.hns.AddLoadBalancer(dp.LoadBalancer{Key: foreignKey(), TargetPort: 80, Endpoints: []string{pod}})
			b := m.start(t)
			backendtest.Set(t, b, web()...)
			lines := logged(t, func(ctx context.Context) { require.NoError(t, b.Sync(ctx)) })
			require.Equal(t, strings.HasSuffix(damage, "\n"), len(lines) == 1, "once, for both families: %v", lines)
			require.NotContains(t, m.hns.Dump(), "172.16.0.1", "it was ours")
			text, err := os.ReadFile(m.record)
			require.NoError(t, err)
			require.NotContains(t, string(text), "\n"+damage)
			b = m.start(t)
			backendtest.Set(t, b, web()...)
			require.Empty(t, logged(t, func(ctx context.Context) { require.NoError(t, b.Sync(ctx)) }), "it was rewritten")
		})
	}
}

// logged returns the lines that something logs.
func logged(t *testing.T, do func(context.Context)) (lines []string) {
	do(klog.NewContext(t.Context(), funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})))
	return lines
}

func TestTheRecordSurvivesAProcessThatDiedWhileItWrote(t *testing.T) {
	m := newMachine(t)
	require.NoError(t, os.WriteFile(m.record, []byte("+ IPv4 172.16.0.1 80 TCP\n+ IPv4 10.96.0.1"), 0o600))
	pod := m.addPod("10.244.1.30")
	m.hns.AddLoadBalancer(dp.LoadBalancer{Key: foreignKey(), TargetPort: 80, Endpoints: []string{pod}})
	put(t, m.start(t), web()...)
	require.NotContains(t, m.hns.Dump(), "172.16.0.1", "it was ours")
	put(t, m.start(t), web()...)
	r := newRecord(m.record)
	require.NoError(t, r.load(t.Context()))
	require.Equal(t, map[dp.Key]bool{webKey(): true}, r.keys)
}

func TestTheRecordDoesNotGrowForever(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	for range 1500 {
		b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
		require.NoError(t, b.Sync(t.Context()))
		put(t, b, fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build())
	}
	text, err := os.ReadFile(m.record)
	require.NoError(t, err)
	require.Less(t, strings.Count(string(text), "\n"), 1100)
	put(t, m.start(t), backendtest.Node())
	require.Zero(t, m.hns.NumLoadBalancers())
}

func TestARemovedLoadBalancerIsRestored(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	want := m.hns.Dump()
	m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
	require.True(t, b.repair(t))
	require.Equal(t, want, m.hns.Dump())
	require.False(t, b.repair(t), "nothing is left to repair")

	m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
	b.ForceResync()
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, want, m.hns.Dump(), "at a resync, too")
}

func TestAChangedLoadBalancerIsCorrected(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	want := m.hns.Dump()
	pod := m.addPod("10.244.1.30")
	list, err := m.hns.LoadBalancers(t.Context())
	require.NoError(t, err)
	list[0].Endpoints = []string{pod}
	require.NoError(t, m.hns.UpdateLoadBalancer(t.Context(), list[0]))
	require.True(t, b.repair(t))
	m.hns.RemoveEndpoint(netip.MustParseAddr("10.244.1.30"))
	require.Equal(t, want, m.hns.Dump())
}

func TestARecreatedNetworkIsFilledAgain(t *testing.T) {
	for _, by := range []string{"the next change", "the check", "a resync"} {
		t.Run(by, func(t *testing.T) {
			m := newOverlay(t)
			b := m.start(t, overlay)
			put(t, b, web()...)
			n, err := m.hns.Network(t.Context(), network)
			require.NoError(t, err)
			m.hns.SetNetwork(n, true)
			m.addPod("10.244.1.5")
			m.addPod("10.244.1.6")
			switch by {
			case "the next change":
				put(t, b, fm.Endpoint(webPort, "10.244.2.6:8080").Build())
				b.DeleteEndpoint(endpointKey("10.244.2.6:8080"))
				require.NoError(t, b.Sync(t.Context()))
			case "the check":
				require.True(t, b.repair(t))
			case "a resync":
				b.ForceResync()
				require.NoError(t, b.Sync(t.Context()))
			}
			got := m.hns.Dump()
			fresh := newOverlay(t)
			put(t, fresh.start(t, overlay), web()...)
			require.Equal(t, fresh.hns.Dump(), got)
		})
	}
}

func TestSyncFailsUntilTheNetworkIsThere(t *testing.T) {
	m := newMachine(t)
	m.hns.DeleteNetwork(network)
	b := m.start(t)
	backendtest.Set(t, b, web()...)
	err := b.Sync(t.Context())
	require.ErrorContains(t, err, `HNS network "cbr0" does not exist`)
	require.Equal(t, model.BothFamilies, sink.FailedFamilies(err))
	m.hns.SetNetwork(dp.Network{Name: network, Type: "l2bridge"}, false)
	m.addPod("10.244.1.5")
	require.NoError(t, b.Sync(t.Context()), "nothing is described a second time")
	require.Equal(t, 1, m.hns.NumLoadBalancers())
}

// An HNS that restarts answers nothing, or with errors. That says nothing about what there is (kubernetes#139519).
func TestAnHNSThatDoesNotAnswerIsNotTakenForEmpty(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	want := m.hns.Dump()
	down := errors.New("the service is not running")
	for _, method := range []string{"Network", "Endpoints", "LoadBalancers"} {
		m.hns.TakeCalls()
		m.hns.SetFailRead(func(call string) error {
			if call == method {
				return down
			}
			return nil
		})
		b.ForceResync()
		require.ErrorIs(t, b.Sync(t.Context()), down)
		m.hns.SetFailRead(nil)
		require.NoError(t, b.Sync(t.Context()))
		require.Empty(t, m.writes())
	}
	require.Equal(t, want, m.hns.Dump())
}

func TestACheckThatFailedIsMadeAgain(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	want := m.hns.Dump()
	m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
	m.hns.SetFailRead(func(string) error { return errors.New("the service is not running") })
	_, err := b.families[model.IPv4].check(t.Context(), nil)
	require.Error(t, err)
	m.hns.SetFailRead(nil)
	require.True(t, b.repair(t))
	require.Equal(t, want, m.hns.Dump())
}

// HNS restores load balancers after a restart, at a time of its own (kubernetes#139519).
func TestALoadBalancerThatAppearsBeforeWeCreateItIsTakenOver(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, backendtest.Node())
	pod := m.addPod("10.244.1.30")
	m.hns.AddLoadBalancer(dp.LoadBalancer{Key: webKey(), TargetPort: 8080, Endpoints: []string{pod}})
	put(t, b, web()...)
	require.Equal(t, 1, m.hns.NumLoadBalancers())
	require.Contains(t, m.hns.Dump(),
		"load balancer 10.96.0.10:80/TCP -> 8080 of 10.244.1.5,fd00:244:1::5, 10.244.2.5\n")
}

// A load balancer that another program makes at the same address later is not the backend's.
func TestDeletionsBeforeACancelledSyncAreRecorded(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, append(web(), api()...)...)
	ctx, cancel := context.WithCancel(t.Context())
	m.hns.SetFail(func(call string) error {
		if strings.HasPrefix(call, "delete load balancer") {
			cancel()
		}
		return nil
	})
	for _, name := range []string{"api", "web"} {
		b.DeleteService(model.ServiceName{Namespace: "default", Name: name})
	}
	require.ErrorIs(t, b.Sync(ctx), context.Canceled)
	left := m.hns.NumLoadBalancers()
	require.NotZero(t, left)
	record := newRecord(m.record)
	require.NoError(t, record.load(t.Context()))
	require.Len(t, record.keys, left)
}
