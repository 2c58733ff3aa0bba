package frontend

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// withFrontends is a service with a cluster IP and so many external IPs.
func withFrontends(name string, year, number, external int) *model.Service {
	b := fakemodel.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", number)).Port("http", 80).Created(inYear(year))
	for i := range external {
		b.ExternalIP(fmt.Sprintf("203.0.113.%d", 16*number+i))
	}
	return b.Build()
}

func TestANamespaceThatAsksForTooMuchAffectsNobodyElse(t *testing.T) {
	old, big := withFrontends("evil/old", 2021, 1, 2), withFrontends("evil/big", 2022, 2, 9)
	young, bystander := withFrontends("evil/young", 2023, 3, 2), withFrontends("prod/web", 2024, 4, 9)
	const refused = "IPv4 evil/big:http/TCP: it is not served: the services of a namespace may have 12 frontends " +
		"together, and older ones have them"
	for _, order := range [][]any{{old, big, young, bystander}, {bystander, young, big, old},
		{big, young, old, bystander}} {
		r := newRig(t)
		r.budget.Namespace.Frontends = 12
		for _, s := range order {
			r.set(s)
			r.exceed(t)
		}
		assert.Equal(t, []string{refused}, r.exceed(t), "every Sync says so")
		assert.Len(t, r.v4.frontends, 3+3+10, "of the oldest, and of what still fits")
		assert.Equal(t, "prod/web", r.v4.owner("10.96.0.4:80/TCP"))
		told := len(r.problems)
		r.DeleteService(old.Name)
		assert.Equal(t, []string{"IPv4 evil/young:http/TCP" + refused[len("IPv4 evil/big:http/TCP"):]}, r.exceed(t),
			"the older one fits now, and the younger one does not")
		assert.Equal(t, "evil/big", r.v4.owner("10.96.0.2:80/TCP"))
		assert.Len(t, r.problems, told+1)
		assert.Equal(t, TooManyFrontends, r.problems[told].Reason)
		r.DeleteService(big.Name)
		r.sync(t)
		assert.Equal(t, "evil/young", r.v4.owner("10.96.0.3:80/TCP"))
	}
}

// A frontend that another service owns counts, too: a namespace cannot wait for more frontends than it may have.
func TestFrontendsOfOthersCountForWhoAsksForThem(t *testing.T) {
	owner, copied := withFrontends("prod/web", 2021, 4, 9), withFrontends("evil/copy", 2022, 4, 9)
	copied.ClusterIPs = nil
	r := newRig(t)
	r.budget.Namespace.Frontends = 10
	r.set(owner)
	r.sync(t)
	r.budget.Namespace.Frontends = 8
	r.set(copied)
	assert.Len(t, r.exceed(t), 1)
	r.DeleteService(owner.Name)
	assert.Len(t, r.exceed(t), 1)
	assert.Empty(t, r.v4.frontends)
}

// A service with thousands of ports that are not served does not fill the log, nor the API server with Events.
func TestProblemsOfManyPortsAreToldTogether(t *testing.T) {
	s := withFrontends("evil/web", 2021, 1, 1)
	s.Ports = slices.Repeat(s.Ports, 30)
	for i := range s.Ports {
		s.Ports[i].Name, s.Ports[i].Port = fmt.Sprintf("p%02d", i), uint16(1+i)
	}
	r := newRig(t)
	r.budget.Namespace.Frontends = 10
	r.set(s)
	assert.Len(t, r.exceed(t), 25)
	require.Len(t, r.problems, 9)
	assert.Equal(t, "p12", r.problems[7].Port.Port)
	assert.Equal(t, "it is not served: the services of a namespace may have 10 frontends together, and older ones have "+
		"them; the same holds for 16 more of its ports", r.problems[8].Message)
	r.exceed(t)
	assert.Len(t, r.problems, 9, "once")
}

// setManyPorts gives namespace evil so many services, each with so many ports.
func (r *rig) setManyPorts(services, ports int) {
	for i := range services {
		s := withFrontends(fmt.Sprintf("evil/s%02d", i), 2021+i, 1+i, 0)
		s.Ports = slices.Repeat(s.Ports, ports)
		for j := range s.Ports {
			s.Ports[j].Name, s.Ports[j].Port = fmt.Sprintf("p%04d", j), uint16(1+j)
		}
		r.set(s)
	}
}

// TestWhatAChangeOfALimitedNamespaceCosts: a change decides again about the ports next to it, however many ports of the
// namespace are refused.
func TestWhatAChangeOfALimitedNamespaceCosts(t *testing.T) {
	const services, ports, refused = 8, 500, 900
	r := newRig(t)
	r.budget.Namespace.Frontends, r.budget.Namespace.Destinations = services*ports-refused, services*ports/2
	r.setManyPorts(services, ports)
	require.Len(t, r.exceed(t), refused)
	endpoint := func(service, port, n int) *model.Endpoint {
		return fakemodel.Endpoint(fmt.Sprintf("evil/s%02d:p%04d/TCP", service, port), fmt.Sprintf("10.1.0.%d:80", n)).Build()
	}
	for _, at := range [][2]int{{0, 0}, {3, 499}, {5, 70}, {7, 499}} {
		before := r.budget.decided
		r.set(endpoint(at[0], at[1], 1))
		require.Len(t, r.exceed(t), refused)
		r.DeleteEndpoint(endpoint(at[0], at[1], 1).Key())
		require.Len(t, r.exceed(t), refused)
		assert.LessOrEqual(t, r.budget.decided-before, 256, "%v", at)
	}
}

// The same where the ports are those of many services: a change looks at those next to it, and so does a new service,
// which is younger than all others.
func TestWhatAChangeOfManyLimitedServicesCosts(t *testing.T) {
	const services, refused = 2000, 450
	r := newRig(t)
	r.budget.Namespace.Frontends, r.budget.Namespace.Destinations = services-refused, services/2
	service := func(i int) *model.Service {
		return fakemodel.Service(fmt.Sprintf("evil/s%04d", i)).ClusterIP(fmt.Sprintf("10.96.%d.%d", i>>8, i&255)).
			Port("http", 80).Created(inYear(2021).Add(time.Duration(i) * time.Second)).Build()
	}
	for i := range services {
		r.set(service(i))
	}
	require.Len(t, r.exceed(t), refused)
	ep := func(i, n int) *model.Endpoint {
		return fakemodel.Endpoint(fmt.Sprintf("evil/s%04d:http/TCP", i), fmt.Sprintf("10.1.0.%d:80", n)).Build()
	}
	for _, at := range []int{0, 700, 1549, 1550, 1999} {
		r.budget.looked = 0
		r.set(ep(at, 1))
		require.Len(t, r.exceed(t), refused)
		r.DeleteEndpoint(ep(at, 1).Key())
		require.Len(t, r.exceed(t), refused)
		assert.LessOrEqual(t, r.budget.looked, 4*256, "%d", at) // in both families
	}
	r.budget.looked = 0
	r.set(service(services))
	require.Len(t, r.exceed(t), refused+1)
	r.DeleteService(service(services).Name)
	require.Len(t, r.exceed(t), refused)
	assert.LessOrEqual(t, r.budget.looked, 4*256)
}

// When endpoints make one port exceed a limit, and another one fit, no other port is updated.
func TestADecisionUpdatesThePortThatItIsAbout(t *testing.T) {
	const services, ports, refused = 8, 500, 900
	r := newRig(t)
	updated := 0
	r.options.Extra = func(*model.Service) any {
		updated++ // once or twice for each port that is updated
		return nil
	}
	r.budget.Namespace.Frontends, r.budget.Namespace.Destinations = services*ports-refused, 3
	r.setManyPorts(services, ports)
	endpoint := func(service, port, n int) *model.Endpoint {
		return fakemodel.Endpoint(fmt.Sprintf("evil/s%02d:p%04d/TCP", service, port), fmt.Sprintf("10.1.0.%d:80", n)).Build()
	}
	displaced, next := endpoint(5, 7, 0).Port, endpoint(6, 100, 0).Port
	for n := range 3 {
		r.set(endpoint(5, 7, n))
	}
	require.Len(t, r.exceed(t), refused)
	for range 2 {
		updated = 0
		r.set(endpoint(0, 0, 1), endpoint(0, 0, 2))
		require.Len(t, r.exceed(t), refused)
		assert.LessOrEqual(t, updated, 4)
		assert.NotContains(t, r.v4.ports, displaced)
		assert.Contains(t, r.v4.ports, next, "it has the frontend now")
		updated = 0
		r.DeleteEndpoint(endpoint(0, 0, 1).Key())
		r.DeleteEndpoint(endpoint(0, 0, 2).Key())
		require.Len(t, r.exceed(t), refused)
		assert.LessOrEqual(t, updated, 4)
		assert.Contains(t, r.v4.ports, displaced)
		assert.NotContains(t, r.v4.ports, next)
	}
}

// A namespace at its limit that goes over it and comes back does not have all of its ports decided about each time.
func TestWhatComesAndGoesAtALimitCosts(t *testing.T) {
	const services, ports = 8, 500
	for name, limit := range map[string]func(*rig){
		"frontends of the namespace": func(r *rig) { r.budget.Namespace.Frontends = services * ports },
		"sticky endpoints of a service": func(r *rig) {
			r.budget.affinity, r.budget.Service.StickyEndpoints, r.budget.Namespace.StickyEndpoints = true, 1, 3072
		},
		"sticky ports of a namespace": func(r *rig) {
			r.budget.affinity = true
			r.budget.Service.StickyEndpoints, r.budget.Service.StickyPorts = 9, 9
			r.budget.Namespace.StickyEndpoints, r.budget.Namespace.StickyPorts = 9, 1
			first := withFrontends("evil/a", 2000, 1, 0)
			first.SessionAffinityTimeout = time.Hour
			r.set(first, fakemodel.Endpoint("evil/a:http/TCP", "10.1.1.1:80").Build())
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			limit(r)
			r.setManyPorts(services, ports)
			over := withFrontends("evil/z", 2040, 100, 0)
			over.SessionAffinityTimeout = time.Hour
			endpoints := []*model.Endpoint{
				fakemodel.Endpoint("evil/z:http/TCP", "10.1.0.1:80").Build(),
				fakemodel.Endpoint("evil/z:http/TCP", "10.1.0.2:80").Build()}
			r.sync(t)
			for round := range 4 {
				before := r.budget.decided
				r.set(over, endpoints[0], endpoints[1])
				_ = r.Sync(t.Context())
				require.Positive(t, r.tenants["evil"].of[0].limited)
				r.DeleteService(over.Name)
				r.sync(t)
				if round > 0 {
					assert.LessOrEqual(t, r.budget.decided-before, 256, "round %d", round)
				}
			}
		})
	}
}

// A port that localstate gives no endpoints is not served, and is served again as soon as it gets some (S60).
func TestAPortWithTooManyEndpointsIsNotServed(t *testing.T) {
	s := withFrontends("default/web", 2021, 1, 1)
	s.Ports = append(s.Ports, model.ServicePort{Name: "admin", Protocol: model.TCP, Port: 81, Routes: s.Ports[0].Routes})
	limited := *s
	limited.Ports = slices.Clone(s.Ports)
	limited.Ports[1].TooManyEndpoints = true
	r := newRig(t)
	r.set(&limited)
	const refused = "IPv4 default/web:admin/TCP: it is not served: its service, or the services of its namespace " +
		"together, have too many addresses times ports"
	assert.Equal(t, []string{refused}, r.exceed(t))
	assert.Len(t, r.v4.frontends, 2, "of the other port")
	assert.Equal(t, TooManyEndpoints, r.problems[0].Reason)
	r.set(s)
	r.sync(t)
	assert.Len(t, r.v4.frontends, 4)
	r.set(&limited)
	assert.Equal(t, []string{refused}, r.exceed(t))
	assert.Len(t, r.v4.frontends, 2)
}

// The number of endpoints may change without a change of the service.
func TestEndpointsTimesFrontendsAreLimited(t *testing.T) {
	s := withFrontends("default/web", 2021, 1, 4)
	r := newRig(t)
	r.budget.Service.Destinations = 10
	endpoint := func(i int) *model.Endpoint {
		return fakemodel.Endpoint("default/web:http/TCP", fmt.Sprintf("10.1.0.%d:80", i)).Build()
	}
	r.set(s, endpoint(1), endpoint(2))
	r.sync(t)
	assert.Len(t, r.v4.frontends, 5)
	r.set(endpoint(3))
	assert.Equal(t, []string{
		"IPv4 default/web:http/TCP: it is not served: a service may have 10 endpoints times frontends"}, r.exceed(t))
	assert.Empty(t, r.v4.frontends)
	r.DeleteEndpoint(endpoint(1).Key())
	r.sync(t)
	assert.Len(t, r.v4.frontends, 5)
	assert.Len(t, r.v4.ports[endpoint(2).Port].sets[0], 2)
}

// restrictedPorts is a service whose ports, with these names, only some sources may use at its load-balancer IP.
func restrictedPorts(name string, year, number int, ports ...string) *model.Service {
	b := fakemodel.Service(name).ClusterIP(fmt.Sprint("10.96.0.", number)).Created(inYear(year)).
		LoadBalancerIP(fmt.Sprint("203.0.113.", number)).SourceRange(fmt.Sprintf("192.0.2.%d/32", number))
	for i, port := range ports {
		b.Port(port, uint16(80+i))
	}
	return b.Build()
}

// A restricted port may have two chains, and the kernel walks each at every change in 20 ns; but one service of 20,000
// ports, or 10,000 services, meet no limit.
func TestTheLimitOfRestrictedPorts(t *testing.T) {
	limits := Limits{}.complete(StickyLimits{})
	assert.GreaterOrEqual(t, limits.Service.RestrictedPorts, 20000)
	assert.GreaterOrEqual(t, limits.Namespace.RestrictedPorts, limits.Service.RestrictedPorts)
	assert.LessOrEqual(t, limits.Namespace.RestrictedPorts*2*20, int(2*time.Millisecond))
}

// A port whose source ranges are too many is not open to everybody: it is not served, and the same one after a restart.
func TestPortsWithSourceRangesAreLimited(t *testing.T) {
	old, young := restrictedPorts("evil/old", 2021, 1, "a", "b", "c"), restrictedPorts("evil/young", 2022, 2, "a", "b")
	open := restrictedPorts("evil/z", 2023, 3, "a", "b", "c", "d")
	open.LoadBalancerSourceRanges = nil
	internal := restrictedPorts("evil/internal", 2020, 4, "a", "b", "c", "d")
	internal.LoadBalancerIPs = nil
	other := restrictedPorts("prod/web", 2024, 5, "a", "b")
	const own = "it is not served: a service may have 2 ports with source ranges"
	const shared = "it is not served: the services of a namespace may have 3 ports with source ranges together, and " +
		"older ones have them"
	for _, order := range [][]any{{old, young, open, internal, other}, {other, internal, open, young, old}} {
		r := newRig(t)
		r.budget.Service.RestrictedPorts, r.budget.Namespace.RestrictedPorts = 2, 3
		for _, s := range order {
			r.set(s)
			_ = r.Sync(t.Context())
		}
		assert.Equal(t, []string{"IPv4 evil/old:c/TCP: " + own, "IPv4 evil/young:b/TCP: " + shared}, r.exceed(t))
		for key, owner := range map[string]string{"203.0.113.1:80/TCP": "evil/old", "203.0.113.1:81/TCP": "evil/old",
			"203.0.113.1:82/TCP": "", "10.96.0.1:82/TCP": "", "203.0.113.2:80/TCP": "evil/young", "203.0.113.2:81/TCP": "",
			"203.0.113.3:83/TCP": "evil/z", "10.96.0.4:83/TCP": "evil/internal", "203.0.113.5:81/TCP": "prod/web"} {
			assert.Equal(t, owner, r.v4.owner(key), key)
		}
		for _, p := range r.problems {
			assert.Equal(t, TooManySourceRanges, p.Reason)
		}
		anyone := *old // may use it
		anyone.LoadBalancerSourceRanges = nil
		r.set(&anyone)
		r.sync(t)
		assert.Equal(t, "evil/old", r.v4.owner("203.0.113.1:82/TCP"))
		assert.Equal(t, "evil/young", r.v4.owner("203.0.113.2:81/TCP"), "it fits now")
		r.set(old)
		assert.Len(t, r.exceed(t), 2)
		assert.Empty(t, r.v4.owner("203.0.113.1:82/TCP"))
		r.DeleteService(young.Name)
		assert.Len(t, r.exceed(t), 1)
	}
}
