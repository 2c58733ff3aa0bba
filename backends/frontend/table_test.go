package frontend

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// web is a service with two families, and ep returns one of its endpoints, in the cluster set.
func web() *fakemodel.ServiceBuilder {
	return fakemodel.Service("default/web").ClusterIP("10.96.0.1", "fd00::1").Port("http", 80)
}

func ep(target string, sets model.EndpointSets) *model.Endpoint {
	return &model.Endpoint{
		Port:   model.PortName{Service: web().Build().Name, Port: "http", Protocol: model.TCP},
		Target: netip.MustParseAddrPort(target), Sets: sets, Ready: true, Serving: true}
}

func TestOptionsAreChecked(t *testing.T) {
	_, err := New(Options{Families: []model.Family{model.IPv4, model.IPv4}})
	assert.EqualError(t, err, "frontend: no Apply function\nfamilies: invalid or duplicate family IPv4")
	_, err = New(Options{Apply: newMirror(t).apply, Families: []model.Family{}})
	assert.ErrorContains(t, err, "no families")
}

func TestOneFamilyThatFailsLeavesTheOtherAlone(t *testing.T) {
	r := newRig(t)
	r.set(web().Build(), ep("10.1.0.1:80", model.ClusterSet), ep("[fd01::1]:80", model.ClusterSet))
	r.sync(t)
	r.v6.fail = errDataplane
	r.set(ep("10.1.0.2:80", model.ClusterSet), ep("[fd01::2]:80", model.ClusterSet))
	err := r.Sync(t.Context())
	assert.Equal(t, model.IPv6.Set(), sink.FailedFamilies(err))
	assert.ErrorIs(t, err, errDataplane)

	r.v6.fail = nil
	r.ResyncFailed()
	r.sync(t)
	assert.Empty(t, r.v4.told, "IPv4 has nothing to do")
	assert.False(t, r.v4.full)
	assert.True(t, r.v6.full)
}

func TestAChangeThatIsTakenBackIsNotTold(t *testing.T) {
	r := newRig(t)
	r.set(web().Build(), ep("10.1.0.1:80", model.ClusterSet), ep("10.1.0.2:80", model.ClusterSet))
	r.sync(t)
	for _, back := range []bool{false, true} { // in the same wave, and in another one after a failure
		r.v4.fail = errDataplane
		r.set(ep("10.1.0.2:80", model.LocalSet), web().ExternalIP("203.0.113.1").Build())
		if back {
			require.Error(t, r.Sync(t.Context()))
		}
		r.set(ep("10.1.0.2:80", model.ClusterSet), web().Build())
		r.v4.fail = nil
		r.sync(t)
		assert.Empty(t, r.v4.told)
	}
}

func TestOneReplacedEndpointIsOneSlot(t *testing.T) {
	r := newRig(t)
	r.set(web().Build())
	for i := range 100 {
		r.set(ep(fmt.Sprintf("10.1.0.%d:80", i), model.ClusterSet))
	}
	r.sync(t)
	r.DeleteEndpoint(ep("10.1.0.17:80", 0).Key())
	r.set(ep("10.1.9.9:80", model.ClusterSet))
	var changes []EndpointChange
	r.options.Apply = func(_ context.Context, c *Changes) error {
		for p := range c.Ports() {
			changes = append(changes, p.EndpointChanges(model.ClusterSet)...)
			assert.Equal(t, 100, p.Before.Size(model.ClusterSet))
		}
		return nil
	}
	r.sync(t)
	require.Len(t, changes, 1)
	assert.Equal(t, 17, changes[0].Slot)
	assert.Equal(t, "10.1.0.17:80", changes[0].Before.Target.String())
	assert.Equal(t, "10.1.9.9:80", changes[0].After.Target.String())
}

// A backend that keeps what it wants learns at a resync what has changed, and not everything anew.
func TestTheDifferenceOfAFullResyncIsWhatHasChanged(t *testing.T) {
	r := newRig(t)
	r.set(web().Build())
	for i := range 10 {
		r.set(ep(fmt.Sprintf("10.1.0.%d:80", i), model.ClusterSet))
	}
	told := map[bool][]EndpointChange{}
	r.options.Apply = func(_ context.Context, c *Changes) error {
		if c.Family() == model.IPv6 {
			return nil
		}
		for full, changes := range map[bool]*Changes{true: c, false: c.Difference()} {
			told[full] = nil
			for p := range changes.Ports() {
				told[full] = append(told[full], p.EndpointChanges(model.ClusterSet)...)
			}
		}
		return nil
	}
	r.sync(t)
	assert.Len(t, told[false], 10, "nothing had been accepted")
	r.ForceResync()
	r.DeleteEndpoint(ep("10.1.0.7:80", 0).Key())
	r.set(ep("10.1.9.9:80", model.ClusterSet))
	r.sync(t)
	assert.Len(t, told[true], 10)
	assert.Len(t, told[false], 1)
	assert.Equal(t, "10.1.0.7:80", told[false][0].Before.Target.String())
}

func TestAShrinkingSetMovesOneEndpointForEachThatGoes(t *testing.T) {
	r := newRig(t)
	r.set(web().Build())
	for i := range 100 {
		r.set(ep(fmt.Sprintf("10.1.0.%d:80", i), model.ClusterSet))
	}
	r.sync(t)
	r.DeleteEndpoint(ep("10.1.0.17:80", 0).Key())
	r.DeleteEndpoint(ep("10.1.0.99:80", 0).Key())
	r.sync(t)
	p := r.v4.ports[ep("10.1.0.1:80", 0).Port]
	assert.Equal(t, "10.1.0.98:80", p.sets[0][17].Target.String())
	assert.Len(t, p.sets[0], 98)
}

func TestAnEndpointThatTakesNoNewConnectionsIsDrainingWhileItServes(t *testing.T) {
	r := newRig(t)
	r.set(web().Build(), ep("10.1.0.1:80", 0))
	r.sync(t)
	p := r.v4.ports[ep("10.1.0.1:80", 0).Port]
	assert.Equal(t, 1, p.Size(Draining))
	assert.Zero(t, p.Size(model.ClusterSet))
	assert.Zero(t, p.Size(model.Route{}.Endpoints), "a route that carries no traffic")
}

// A dataplane that ends the connections of endpoints that it does not know asks for those that do not serve, too.
func TestAnEndpointThatDoesNotServeIsDrainingOnRequest(t *testing.T) {
	for _, all := range []bool{false, true} {
		var sizes []int
		table, err := New(Options{Families: []model.Family{model.IPv4}, AllEndpoints: all,
			Apply: func(_ context.Context, c *Changes) error {
				for p := range c.Ports() {
					sizes = append(sizes, p.After.Size(Draining))
				}
				return nil
			}})
		require.NoError(t, err)
		unready, gone, used := *ep("10.1.0.1:80", 0), *ep("10.1.0.2:80", 0), ep("10.1.0.3:80", model.ClusterSet)
		unready.Ready, unready.Serving, gone.Serving = false, false, false
		table.SetService(web().Build())
		noPort := &model.Endpoint{Port: used.Port, Target: netip.MustParseAddrPort("10.1.0.4:0")}
		for _, e := range []*model.Endpoint{&unready, &gone, used, noPort} {
			table.SetEndpoint(e)
		}
		require.NoError(t, table.Sync(quiet(t)))
		table.DeleteEndpoint(gone.Key())
		require.NoError(t, table.Sync(quiet(t)))
		if all {
			assert.Equal(t, []int{2, 1}, sizes)
		} else {
			assert.Equal(t, []int{0}, sizes)
		}
	}
}

// A value of EndpointSets that is not one backend set has no endpoints, and does not cause a panic.
func TestWhatIsNoBackendSetIsEmpty(t *testing.T) {
	target := netip.MustParseAddrPort("10.1.0.1:80")
	r := newRig(t)
	r.options.Apply = func(_ context.Context, c *Changes) error {
		for p := range c.Ports() {
			for _, set := range []model.EndpointSets{0, model.ClusterSet | model.LocalSet, 255} {
				assert.Zero(t, p.After.Size(set))
				assert.Empty(t, p.Endpoints(set))
				assert.Empty(t, p.EndpointChanges(set))
				assert.False(t, p.Sets(target).Has(set))
			}
		}
		return nil
	}
	r.set(web().Build(), ep(target.String(), 0), ep("10.1.0.2:80", model.ClusterSet|model.LocalSet))
	r.sync(t)
}

func TestEndpointsThatAreServedNowhereLeaveNothingBehind(t *testing.T) {
	table, err := New(Options{Families: []model.Family{model.IPv4}, Apply: newMirror(t).apply})
	require.NoError(t, err)
	for _, e := range []*model.Endpoint{ep("[fd01::1]:80", model.ClusterSet), {Port: ep("10.1.0.1:80", 0).Port}} {
		table.SetEndpoint(e)
		require.NoError(t, table.Sync(quiet(t)))
		table.DeleteEndpoint(e.Key())
		require.NoError(t, table.Sync(quiet(t)))
		assert.Empty(t, table.services)
	}
}

func TestRefusedServicePortsDoNotFailAFamily(t *testing.T) {
	r := newRig(t)
	r.v4.fail = &sink.PortError{Port: ep("10.1.0.1:80", 0).Port, Family: model.IPv4, Err: errors.New("no SCTP")}
	r.v4.early = true // the mirror has it all
	r.set(web().Build())
	err := r.Sync(t.Context())
	assert.Len(t, sink.PortErrors(err), 1)
	assert.Zero(t, sink.FailedFamilies(err))

	r.v4.fail = nil
	r.sync(t)
	assert.False(t, r.v4.retry, "an ordinary Sync")
	r.ResyncFailed()
	r.sync(t)
	assert.True(t, r.v4.retry)
	assert.False(t, r.v4.full)
}

func TestWhatHasBeenAcceptedIsNotToldAgainAfterAFailure(t *testing.T) {
	r := newRig(t)
	r.v4.fail, r.v4.early = errDataplane, true
	r.set(web().Build())
	require.Error(t, r.Sync(t.Context()))
	r.v4.fail = nil
	r.sync(t)
	assert.Empty(t, r.v4.told)
}

func TestARepairInTheMiddleOfAWaveSeesTheStateOfTheLastSync(t *testing.T) {
	r := newRig(t)
	r.set(web().Build())
	r.sync(t)
	r.set(ep("10.1.0.1:80", model.ClusterSet))
	r.repair(t)
	assert.Equal(t, 2, r.v4.calls)
	assert.Empty(t, r.v4.ports[ep("10.1.0.1:80", 0).Port].sets[0])
	r.sync(t)
	assert.Len(t, r.v4.ports[ep("10.1.0.1:80", 0).Port].sets[0], 1)
}

func TestAfterCleanUpEverythingIsNew(t *testing.T) {
	r := newRig(t)
	r.set(web().Build())
	r.sync(t)
	viewed := func() (n int) {
		r.View(web().Build().Name, func(_ *Changes, ports []*PortChange) { n += len(ports) })
		return n
	}
	assert.Equal(t, 2, viewed(), "in both families")
	require.NoError(t, r.CleanUp(t.Context(), func(context.Context) error {
		r.v4.reset()
		r.v6.reset()
		return nil
	}))
	assert.Zero(t, viewed())
	r.sync(t)
	assert.Equal(t, 2, viewed())
	assert.True(t, r.v4.full)
	assert.Len(t, r.v4.ports, 1)
}

func TestACancelledSyncReturnsTheContextsError(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r.v4.fail = errors.New("interrupted")
	assert.ErrorIs(t, r.Sync(ctx), context.Canceled)
}

func TestWhatCannotBeServedIsSkippedByName(t *testing.T) {
	s := web().Build()
	none := model.ServicePort{Name: "none", Protocol: model.TCP,
		Routes: model.PerFamily[model.Routes]{IPv4: s.Ports[0].Routes.IPv4}}
	s.Ports = append(s.Ports, s.Ports[0], none)
	r := newRig(t)
	r.set(s, ep("10.1.0.1:0", model.ClusterSet), ep("10.1.0.2:0", model.ClusterSet),
		ep("10.1.0.3:80", model.ClusterSet))
	r.SetEndpoint(nil)
	r.SetService(nil)
	r.SetNode(nil)
	r.SetEndpoint(&model.Endpoint{Port: ep("10.1.0.1:0", 0).Port})
	r.sync(t)
	var lines []string
	for _, p := range r.problems {
		lines = append(lines, fmt.Sprintf("%v %v %v: %v", p.Port, p.Family, p.Reason, p.Message))
	}
	assert.ElementsMatch(t, []string{
		"default/web:http/TCP IPv4 DuplicatePort: the service has two ports of that name and protocol",
		"default/web:http/TCP IPv6 DuplicatePort: the service has two ports of that name and protocol",
		"default/web:none/TCP IPv4 InvalidPort: it has no port number or protocol",
		"default/web:http/TCP IPv4 InvalidEndpoint: endpoint 10.1.0.1 has no port number",
		"default/web:http/TCP Family(0) InvalidEndpoint: an endpoint has no address",
	}, lines)
	assert.Len(t, r.v4.ports[ep("10.1.0.1:0", 0).Port].sets[0], 1)

	r.set(web().Label("a", "b").Build())
	r.sync(t)
	assert.Len(t, r.problems, 5, "nothing is told twice")
	r.DeleteService(s.Name)
	r.sync(t)
	r.set(s)
	r.sync(t)
	assert.Len(t, r.problems, 8, "another service of that name")
}

func TestAServiceWithTooManyFrontendsIsServedAsFarAsItGoes(t *testing.T) {
	b := fakemodel.Service("default/web").ClusterIP("10.96.0.1")
	for i := range 10 {
		b.ExternalIP(fmt.Sprintf("203.0.113.%d", i))
	}
	for i := range 10 {
		b.Port(fmt.Sprintf("p%d", i), uint16(80+i))
	}
	r := newRig(t)
	r.budget.Service.Frontends = 25
	r.set(b.Build())
	assert.Len(t, r.exceed(t), 8)
	assert.Len(t, r.v4.frontends, 25)
	require.Len(t, r.problems, 8)
	assert.Equal(t, "8 of its addresses are not served: a service may have 25 frontends", r.problems[0].Message)
	r.set(fakemodel.Service("default/web").ClusterIP("10.96.0.1").Port("p0", 80).Build())
	r.sync(t)
	assert.Len(t, r.v4.frontends, 1)
	r.set(b.Build())
	assert.Len(t, r.exceed(t), 8)
	assert.Len(t, r.problems, 16, "it had come to an end")
}

// Frontends that the service does not ask for do not count: addresses that are listed twice, or as another kind, and
// VIPs that are not served.
func TestOnlyFrontendsThatAreAskedForCount(t *testing.T) {
	b := fakemodel.Service("default/web").ClusterIP("10.96.0.1").Port("http", 80)
	b.SourceRange("192.0.2.0/24").SourceRange("198.51.100.0/24").LoadBalancerIP("203.0.113.1", "203.0.113.2")
	b.ExternalIP("203.0.113.1", "203.0.113.3", "203.0.113.3", "10.96.0.1", "203.0.113.4", "203.0.113.5")
	r := newRig(t)
	r.budget.Service.SourceRanges, r.budget.Service.Frontends = 1, 4
	r.set(b.Build())
	assert.Len(t, r.exceed(t), 1)
	for _, k := range []string{"10.96.0.1:80/TCP", "203.0.113.3:80/TCP", "203.0.113.4:80/TCP", "203.0.113.5:80/TCP"} {
		assert.Equal(t, "default/web", r.v4.owner(k), k)
	}
	assert.Len(t, r.v4.frontends, 4)
	if assert.Len(t, r.problems, 1) {
		assert.Equal(t, TooManySourceRanges, r.problems[0].Reason)
	}
}

func TestTheVIPsOfAServiceWithTooManySourceRangesAreNotServed(t *testing.T) {
	build := func(ranges int) *model.Service {
		b := fakemodel.Service("default/web").ClusterIP("10.96.0.1", "fd00::1").Port("http", 80)
		b.LoadBalancerIP("203.0.113.1", "203.0.113.2").ExternalIP("203.0.113.2", "203.0.113.3")
		b.SourceRange("2001:db8::/32")
		for i := range ranges {
			b.SourceRange(fmt.Sprintf("192.0.2.%d/32", i))
		}
		return b.Build()
	}
	r := newRig(t)
	r.budget.Service.SourceRanges = 10
	other := fakemodel.Service("default/other").Port("http", 80).LoadBalancerIP("203.0.113.9")
	r.set(build(10), other.SourceRange("192.0.2.0/24").Build())
	r.sync(t)
	assert.Equal(t, "default/web", r.v4.owner("203.0.113.1:80/TCP"))
	assert.Empty(t, r.problems)

	r.set(build(11))
	assert.Equal(t, []string{
		"IPv4 default/web:http/TCP: its load-balancer IPs are not served: a service may have 10 source ranges"},
		r.exceed(t))
	assert.Empty(t, r.v4.owner("203.0.113.1:80/TCP"))
	assert.Empty(t, r.v4.owner("203.0.113.2:80/TCP"), "as an external IP it would be open to all")
	assert.Equal(t, "default/web", r.v4.owner("203.0.113.3:80/TCP"))
	assert.Equal(t, "default/web", r.v4.owner("10.96.0.1:80/TCP"))
	assert.Equal(t, "default/other", r.v4.owner("203.0.113.9:80/TCP"))
	if assert.Len(t, r.problems, 1) {
		assert.Equal(t, TooManySourceRanges, r.problems[0].Reason)
		assert.Equal(t, model.IPv4, r.problems[0].Family)
		assert.Equal(t, "its load-balancer IPs are not served: a service may have 10 source ranges",
			r.problems[0].Message)
	}

	r.set(build(9))
	r.sync(t)
	assert.Equal(t, "default/web", r.v4.owner("203.0.113.1:80/TCP"), "it keeps to the limit again")
}

func TestLimitsAreNotNegative(t *testing.T) {
	_, err := New(Options{Apply: newMirror(t).apply, Limits: Limits{Namespace: Budget{SourceRanges: -1}}})
	assert.ErrorContains(t, err, "limits: must not be negative")
}

func TestAnotherPodCIDRChangesWhoMayReachItself(t *testing.T) {
	r := newRig(t)
	policy := model.RoutePolicy{ClusterIP: true, DetectsLocalPods: true}
	s := web().Build()
	s.Ports[0].Routes.IPv4 = model.NewRoutes(policy)
	r.set(s, ep("10.1.0.1:80", model.ClusterSet))
	r.sync(t)
	assert.Empty(t, r.v4.hairpins, "it is on another node, and masqueraded as such")
	pods := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd01::/64")}
	r.SetNode(&model.Node{Name: "n1", LocalPods: model.LocalPods{CIDRs: pods}})
	r.sync(t)
	assert.Contains(t, r.v4.hairpins, "10.1.0.1")
}
