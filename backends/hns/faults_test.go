package hns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
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

// api is another service, beside web.
func api() []any {
	return []any{
		fm.Service("default/api").ClusterIP("10.96.0.11").Port("http", 80).NodePort(30080).Build(),
		fm.Endpoint("default/api:http/TCP", "10.244.1.6:9090").Local().Build()}
}

// failsOnly checks that a Sync fails for one service port and nothing else.
func failsOnly(t *testing.T, err error, port string) {
	t.Helper()
	require.Zero(t, sink.FailedFamilies(err), "%v", err)
	var names []string
	for _, e := range sink.PortErrors(err) {
		names = append(names, e.Port.String())
	}
	require.Equal(t, []string{port}, names)
}

func TestALoadBalancerThatFailsFailsItsServicePortAlone(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	m.hns.SetFail(func(call string) error {
		if call == "create load balancer 10.96.0.10:80/TCP" {
			return errors.New("the parameter is incorrect (0x57)")
		}
		return nil
	})
	backendtest.Set(t, b, append(web(), api()...)...)
	err := b.Sync(t.Context())
	failsOnly(t, err, webPort)
	require.ErrorContains(t, err, "10.96.0.10:80/TCP: create: the parameter is incorrect")
	require.Contains(t, m.hns.Dump(), "load balancer 10.96.0.11:80/TCP")
	require.Contains(t, m.hns.Dump(), "load balancer IPv4 node port 30080/TCP")

	m.hns.TakeCalls()
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.Empty(t, m.writes(), "it is tried again when the runner says so")
	m.hns.SetFail(nil)
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "load balancer 10.96.0.10:80/TCP")
}

func TestAPortThatTheHostUsesFailsItsServicePortAlone(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	m.hns.Reserve(dp.Key{Family: model.IPv4, Port: 30080, Protocol: model.TCP})
	backendtest.Set(t, b, append(web(), api()...)...)
	err := b.Sync(t.Context())
	failsOnly(t, err, "default/api:http/TCP")
	require.ErrorIs(t, err, dp.ErrAlreadyExists)
	require.Contains(t, m.hns.Dump(), "load balancer 10.96.0.11:80/TCP")
}

func TestVersionsWithoutModifyReplace(t *testing.T) {
	for name, old := range map[string]func(*dp.Fake){
		"that say so":           func(f *dp.Fake) { f.Supported.ModifyLoadBalancer = false },
		"that only find it out": func(f *dp.Fake) { f.RefuseModify = true },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			old(m.hns)
			b := m.start(t)
			put(t, b, web()...)
			m.hns.TakeCalls()
			put(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
			writes := m.writes()
			require.Equal(t, []string{"delete load balancer 10.96.0.10:80/TCP",
				"create load balancer 10.96.0.10:80/TCP"},
				writes[len(writes)-2:])
			b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
			require.NoError(t, b.Sync(t.Context()))
			require.NotContains(t, m.writes(), "update load balancer 10.96.0.10:80/TCP", "it is asked once")
			require.Contains(t, m.hns.Dump(), "of 10.244.1.5,fd00:244:1::5, 10.244.1.6,fd00:244:1::6\n")
		})
	}
}

func TestALoadBalancerRemovedBehindOurBackIsCreatedWhenItChanges(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
	put(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
	require.Contains(t, m.hns.Dump(), "of 10.244.1.5,fd00:244:1::5, 10.244.1.6,fd00:244:1::6, 10.244.2.5\n")
	m.hns.RemoveLoadBalancers(func(dp.LoadBalancer) bool { return true })
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(t.Context()), "nor is it an error to delete it")
}

func TestAnEndpointRemovedBehindOurBackIsCreatedAgain(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	m.hns.RemoveEndpoint(netip.MustParseAddr("10.244.2.5"))
	put(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
	require.Contains(t, m.hns.Dump(), "of 10.244.1.5,fd00:244:1::5, 10.244.1.6,fd00:244:1::6, 10.244.2.5\n")
}

func TestAnUnusableLoadBalancerAffectsNothingElse(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, append(web(), api()...)...)
	m.hns.MakeUnusable(webKey())
	backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build(),
		fm.Endpoint("default/api:http/TCP", "10.244.1.5:9090").Local().Build())
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.Contains(t, m.hns.Dump(), "10.96.0.11:80/TCP -> 9090 of 10.244.1.5,fd00:244:1::5, 10.244.1.6")
	b.ResyncFailed()
	failsOnly(t, b.Sync(t.Context()), webPort)
	m.hns.MakeUsable()
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "10.96.0.10:80/TCP -> 8080 of 10.244.1.5,fd00:244:1::5, 10.244.1.6")
}

func TestADeletionThatFailedIsTriedAgain(t *testing.T) {
	m := newMachine(t)
	before := m.hns.Dump()
	b := m.start(t)
	put(t, b, web()...)
	m.hns.MakeUnusable(webKey())
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(t.Context()), "no service port is left that it could be an error of")
	require.Equal(t, 1, m.hns.NumLoadBalancers())
	m.hns.MakeUsable()
	b.repair(t)
	b.DeleteEndpoint(endpointKey("10.244.1.5:8080"))
	b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, before, m.hns.Dump())
}

func TestAnEndpointThatCannotBeDeletedIsTriedAgain(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	m.hns.SetFail(func(call string) error {
		if call == "delete endpoint 10.244.2.5" {
			return errors.New("the endpoint is in use")
		}
		return nil
	})
	b.DeleteEndpoint(endpointKey("10.244.2.5:8080"))
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "remote endpoint 10.244.2.5")
	m.hns.SetFail(nil)
	b.repair(t)
	require.NotContains(t, m.hns.Dump(), "remote endpoint 10.244.2.5")
}

func TestLimitsOfHNSFailTheServicePortAndKeepWhatThereIs(t *testing.T) {
	m := newMachine(t)
	m.hns.MaxEndpoints = 2
	b := m.start(t)
	put(t, b, web()...)
	before := m.hns.Dump()
	backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.Equal(t, before, m.hns.Dump())
}

func TestACancelledSyncLosesNothing(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	backendtest.Set(t, b, api()...)
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	m.hns.SetFail(func(string) error {
		if calls++; calls == 1 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, b.Sync(ctx), context.Canceled)
	m.hns.SetFail(nil)
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "load balancer 10.96.0.11:80/TCP")
	require.Contains(t, m.hns.Dump(), "load balancer IPv4 node port 30080/TCP")
}

func TestALocalPodWhoseEndpointIsNotThereYetIsWaitedFor(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	backendtest.Set(t, b, fm.Endpoint(webPort, "10.244.1.9:8080").Local().Build(),
		fm.Endpoint(webPort, "10.244.1.6:8080").Local().Build())
	err := b.Sync(t.Context())
	failsOnly(t, err, webPort)
	require.ErrorContains(t, err, "endpoint 10.244.1.9 of this node is not in HNS network")
	require.Contains(t, m.hns.Dump(), "10.244.1.6,fd00:244:1::6, 10.244.2.5\n", "all others are used")
	m.addPod("10.244.1.9")
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "10.244.1.9, 10.244.2.5\n")
}

func TestHNSWithoutVersion2IsNotEnough(t *testing.T) {
	m := newMachine(t)
	m.hns.Supported = dp.Features{}
	_, err := New(t.Context(), Options{Network: network, Dataplane: m.hns})
	require.ErrorIs(t, err, dp.ErrNotSupported)
}

func TestHNSWithoutDualStackServesIPv4(t *testing.T) {
	m := newMachine(t)
	m.hns.Supported.IPv6DualStack = false
	put(t, m.start(t), fm.Service("default/web").ClusterIP("10.96.0.10", "fd00:96::10").Port("http", 80).Build(),
		fm.Endpoint(webPort, "10.244.1.5:8080").Local().Build(),
		fm.Endpoint(webPort, "[fd00:244:1::5]:8080").Local().Build())
	require.Equal(t, 1, m.hns.NumLoadBalancers())
}

// A large service may have many endpoints that cannot be used: the first ones are named, and all are counted.
func TestOfManyEndpointsThatCannotBeUsedTheFirstAreNamed(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	backendtest.Set(t, b, web()...)
	for i := range 1000 {
		backendtest.Set(t, b, fm.Endpoint(webPort, fmt.Sprintf("10.244.%d.%d:8080", 3+i/250, i%250)).Local().Build())
	}
	err := b.Sync(t.Context())
	failsOnly(t, err, webPort)
	require.ErrorContains(t, err, "endpoint 10.244.3.0 of this node is not in HNS network")
	require.ErrorContains(t, err, "and 990 more errors")
	require.Equal(t, 10, strings.Count(err.Error(), "is not in HNS network"))
}

func TestOfManyEndpointsThatCannotBeDeletedTheFirstAreNamed(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	backendtest.Set(t, b, web()...)
	for i := range 100 {
		backendtest.Set(t, b, fm.Endpoint(webPort, fmt.Sprintf("10.244.3.%d:8080", i)).Build())
	}
	require.NoError(t, b.Sync(t.Context()))
	m.hns.SetFail(func(call string) error {
		if strings.HasPrefix(call, "delete endpoint") {
			return errors.New("busy")
		}
		return nil
	})
	require.Equal(t, 10, strings.Count(b.CleanUp(t.Context()).Error(), "busy"))
}

// Each of the load balancers has the endpoint.
func TestAnEndpointThatHNSRefusesIsAskedForOnceInEachSync(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	m.hns.SetFail(func(call string) error {
		if call == "create endpoint 10.244.2.5" {
			return errors.New("the address is invalid")
		}
		return nil
	})
	many := fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80)
	for i := range 100 {
		many.ExternalIP(fmt.Sprint("198.51.100.", i))
	}
	tries := func() (n int) {
		for _, call := range m.writes() {
			if call == "create endpoint 10.244.2.5" {
				n++
			}
		}
		return n
	}
	backendtest.Set(t, b, web()...)
	backendtest.Set(t, b, many.Build())
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.Equal(t, 1, tries())
	b.ResyncFailed()
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.LessOrEqual(t, tries(), 2, "the second time after looking whether somebody else has made it")
	m.hns.SetFail(nil)
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Equal(t, 101, strings.Count(m.hns.Dump(), ", 10.244.2.5"), "load balancers that have it")
}

// A copy of 50,000 endpoints for each of 10,000 addresses would not fit into memory.
func TestTheAddressesOfAPortShareTheListOfItsEndpoints(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	put(t, b, web()...)
	put(t, b, fm.Service("default/web").ClusterIP("10.96.0.10").ExternalIP("198.51.100.1").Port("http", 80).Build())
	lists := map[*target]int{}
	for _, lb := range b.families[model.IPv4].balancers {
		_, s := lb.want()
		require.Len(t, s.targets, 2)
		lists[&s.targets[0]]++
	}
	require.Equal(t, []int{2}, slices.Collect(maps.Values(lists)))
}

// When HNS fails in the middle, a line for each of thousands would bury the rest.
func TestFailedDeletionsAreLoggedInOneLine(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	backendtest.Set(t, b, web()...)
	many := fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80)
	for i := range 100 {
		backendtest.Set(t, b, fm.Endpoint(webPort, fmt.Sprintf("10.244.3.%d:8080", i)).Build())
		many.ExternalIP(fmt.Sprint("198.51.100.", i))
	}
	put(t, b, many.Build())
	m.hns.SetFail(func(call string) error {
		if strings.HasPrefix(call, "delete") {
			return errors.New("busy")
		}
		return nil
	})
	var lines []string
	logger := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	b.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	require.NoError(t, b.Sync(klog.NewContext(t.Context(), logger)))
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "Could not delete load balancers; trying again later")
	require.Contains(t, lines[0], "and 91 more errors")
	m.hns.SetFail(func(call string) error {
		if strings.HasPrefix(call, "delete endpoint") {
			return errors.New("busy")
		}
		return nil
	})
	lines = nil
	b.ResyncFailed()
	require.NoError(t, b.Sync(klog.NewContext(t.Context(), logger)))
	require.Len(t, lines, 1)
	require.Contains(t, lines[0], "Could not delete HNS endpoints; trying again later")
	require.Contains(t, lines[0], "and 91 more errors")
}

// In an overlay network a cluster IP has an endpoint of its own. While none of the service's endpoints can be used,
// that endpoint has no use: it is not created and deleted at every resync.
func TestAServiceWithoutAUsableEndpointCostsNothingAtAResync(t *testing.T) {
	m := newOverlay(t)
	b := m.start(t, overlay)
	backendtest.Set(t, b, backendtest.Node(), fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build(),
		fm.Endpoint(webPort, "10.244.1.9:8080").Local().Build())
	failsOnly(t, b.Sync(t.Context()), webPort)
	m.writes()
	for range 2 {
		b.ForceResync()
		failsOnly(t, b.Sync(t.Context()), webPort)
		require.Empty(t, m.writes())
	}
	m.addPod("10.244.1.9")
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	require.Contains(t, m.hns.Dump(), "load balancer 10.96.0.10:80/TCP")
	m.writes()
	m.hns.RemoveEndpoint(netip.MustParseAddr("10.244.1.9"))
	for range 2 { // it was there and is not usable any more
		b.ForceResync()
		failsOnly(t, b.Sync(t.Context()), webPort)
	}
	m.writes()
	b.ForceResync()
	failsOnly(t, b.Sync(t.Context()), webPort)
	require.Empty(t, m.writes())
}

// A load balancer must not send to a node where none of a Service's external frontends is served (S38).
func TestAnErrorSaysWhetherOutsideClientsReachThePort(t *testing.T) {
	m := newMachine(t)
	b := m.start(t)
	var fails string
	m.hns.SetFail(func(call string) error {
		if strings.HasPrefix(call, "create load balancer "+fails) {
			return errors.New("the parameter is incorrect (0x57)")
		}
		return nil
	})
	service := func(vips ...string) *model.Service {
		return fm.Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).NodePort(30080).
			LoadBalancerIP(vips...).Build()
	}
	sync := func() bool {
		errs := sink.PortErrors(b.Sync(t.Context()))
		require.Len(t, errs, 1)
		return errs[0].ServesExternal
	}
	backendtest.Set(t, b, web()...)
	b.SetService(service())
	fails = "IPv4 node port 30080/TCP"
	require.False(t, sync(), "the cluster IP alone is served")
	require.False(t, sync(), "as long as it is refused")
	b.SetService(service("203.0.113.1"))
	require.True(t, sync(), "the VIP is served")
	fails = "none"
	b.ResyncFailed()
	require.NoError(t, b.Sync(t.Context()))
	fails = "203.0.113.2"
	b.SetService(service("203.0.113.1", "203.0.113.2"))
	require.True(t, sync(), "others are served")
}
