package nft_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/internal/backendtest"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// stickyChain matches the chain that keeps the clients of a service port at their endpoints.
var stickyChain = regexp.MustCompile(`\tchain affinity-[a-z0-9]+-(\S+)-cluster {`)

// A service that has more sticky endpoints than it may is served, but some of its ports without affinity; those of
// others have theirs.
func TestStickyEndpointsAreLimited(t *testing.T) {
	limits := nft.StickyLimits()
	require.Positive(t, min(limits.Service, limits.Namespace))
	var problems []frontend.Problem
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4},
		OnProblem: func(_ context.Context, p frontend.Problem) { problems = append(problems, p) }}})
	sticky := func() (ports []string) {
		for _, found := range stickyChain.FindAllStringSubmatch(r.dump(model.IPv4), -1) {
			ports = append(ports, found[1])
		}
		slices.Sort(ports)
		return ports
	}
	r.Set(backendtest.Node())
	r.Set(backendtest.Sticky("evil/big", 2021, 1, limits.Service/2, "a", "b")...)
	r.Set(backendtest.Sticky("prod/web", 2024, 2, 10, "http")...)
	r.Sync()
	assert.Equal(t, []string{"evil/big/tcp/a", "evil/big/tcp/b", "prod/web/tcp/http"}, sticky())
	assert.Empty(t, problems)
	one := fm.Endpoint("evil/big:b/TCP", "10.199.0.1:8081").Build()
	r.Set(one)
	r.Sync()
	assert.Equal(t, []string{"evil/big/tcp/a", "prod/web/tcp/http"}, sticky(), "one more is too many")
	require.Len(t, problems, 1)
	assert.Equal(t, frontend.TooManyStickyEndpoints, problems[0].Reason)
	assert.Contains(t, r.dump(model.IPv4), "10.199.0.1 . 8081", "it is served")
	r.Delete(one.Key())
	r.Sync()
	assert.Equal(t, []string{"evil/big/tcp/a", "evil/big/tcp/b", "prod/web/tcp/http"}, sticky(), "it fits again")
}

// A namespace that has more sticky ports than it may is served, but some of its ports without affinity: the same ones
// after a restart, whatever came first.
func TestStickyPortsAreLimited(t *testing.T) {
	limits := frontend.Limits{Service: frontend.Budget{StickyPorts: 2}, Namespace: frontend.Budget{StickyPorts: 3}}
	var problems []frontend.Problem
	start := func() (r *rig, sticky func() []string) {
		problems = nil
		r = newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}, Limits: limits,
			OnProblem: func(_ context.Context, p frontend.Problem) { problems = append(problems, p) }}})
		r.Set(backendtest.Node())
		return r, func() (ports []string) {
			r.Sync()
			for _, found := range stickyChain.FindAllStringSubmatch(r.dump(model.IPv4), -1) {
				ports = append(ports, found[1])
			}
			slices.Sort(ports)
			return ports
		}
	}
	old := backendtest.Sticky("evil/old", 2021, 1, 2, "a", "b", "c")
	young := backendtest.Sticky("evil/young", 2022, 2, 3, "a", "b")
	other := backendtest.Sticky("prod/web", 2024, 3, 2, "http")
	first := []string{"evil/old/tcp/a", "evil/old/tcp/b", "evil/young/tcp/a", "prod/web/tcp/http"}

	r, sticky := start()
	r.Set(slices.Concat(young, other)...)
	assert.Equal(t, []string{"evil/young/tcp/a", "evil/young/tcp/b", "prod/web/tcp/http"}, sticky())
	assert.Empty(t, problems)
	r.Set(old...)
	assert.Equal(t, first, sticky(), "the oldest Services come first")
	told := map[string]string{}
	for _, p := range problems {
		assert.Equal(t, frontend.TooManyStickyPorts, p.Reason)
		told[p.Port.String()] = p.Message
		assert.Contains(t, r.backend.Problems(p.Port.Service), p.Message)
	}
	assert.Equal(t, map[string]string{
		"evil/old:c/TCP": "it is served without session affinity: a service may have 2 ports with it",
		"evil/young:b/TCP": "it is served without session affinity: the services of a namespace may have 3 ports with it " +
			"together, and older ones have them"}, told)
	for _, endpoint := range []string{"10.101.0.1 . 8082", "10.102.0.2 . 8081"} {
		assert.Contains(t, r.dump(model.IPv4), endpoint, "all ports are served")
	}
	r.Delete(old[1], old[2]) // the endpoints of port a
	assert.Equal(t, []string{"evil/old/tcp/b", "evil/old/tcp/c", "evil/young/tcp/a", "prod/web/tcp/http"}, sticky(),
		"a port without endpoints has no chains")
	r.Set(old[1], old[2])
	assert.Equal(t, first, sticky())
	problems = nil

	restarted, again := start()
	restarted.Set(old...)
	assert.Equal(t, []string{"evil/old/tcp/a", "evil/old/tcp/b"}, again(), "the limit of a Service")
	restarted.Set(slices.Concat(other, young)...)
	assert.Equal(t, first, again(), "in another order")
	assert.Len(t, problems, 2)

	slices.Reverse(old) // endpoints are deleted before their service
	r.Delete(old...)
	assert.Equal(t, []string{"evil/young/tcp/a", "evil/young/tcp/b", "prod/web/tcp/http"}, sticky(), "they fit again")
	assert.Empty(t, r.backend.Problems(model.ServiceName{Namespace: "evil", Name: "young"}))
}

// What a namespace has of chains is bounded, so that the change of any other namespace takes little more time: each
// commit walks all chains, at 20 ns each.
func TestANamespaceHasFewChains(t *testing.T) {
	limits := nft.StickyLimits()
	r := newStickyRig(t)
	for i := range 2 {
		s := fm.Service(fmt.Sprint("evil/s", i)).ClusterIP(fmt.Sprint("10.96.0.", 1+i)).DetectsLocalPods().ExternalLocal().
			Affinity(time.Hour).LoadBalancerIP(fmt.Sprint("203.0.113.", 1+i)).SourceRange("198.51.100.0/24")
		for port := range limits.ServicePorts + 50 {
			name := fmt.Sprint("p", port)
			s.Port(name, uint16(1+port))
			ep := fm.Endpoint(fmt.Sprintf("evil/s%d:%s/TCP", i, name), fmt.Sprintf("10.244.2.2:%d", 1+port)).Build()
			ep.Sets |= model.LocalSet
			r.Set(ep)
		}
		r.Set(s.Build())
	}
	r.Sync()
	const each, shared = 6, 60 // most that a port without node ports has, and at most those of the table
	assert.InDelta(t, limits.NamespacePorts*each, strings.Count(r.dump(model.IPv4), "\tchain "), shared)
	assert.LessOrEqual(t, limits.NamespacePorts*each*20, int(2*time.Millisecond))
}

// No limit is met by one Service with 8,000 ports, nor by 10,000 Services of a namespace with one each.
func TestLimitsOfStickyPortsLeaveRoom(t *testing.T) {
	r := newStickyRig(t)
	many := fm.Service("big/ports").ClusterIP("10.97.0.1").Affinity(time.Hour)
	for i := range 8000 {
		many.Port(fmt.Sprint("p", i), uint16(1+i))
		r.Set(fm.Endpoint(fmt.Sprintf("big/ports:p%d/TCP", i), "10.244.2.2:80").Build())
	}
	r.Set(many.Build())
	for i := range 10000 {
		name := fmt.Sprint("wide/s", i)
		r.Set(fm.Service(name).ClusterIP(fmt.Sprintf("10.98.%d.%d", i>>8, i&255)).Affinity(time.Hour).Port("p", 80).Build())
		r.Set(fm.Endpoint(name+":p/TCP", "10.244.2.3:80").Build())
	}
	r.Sync()
	assert.Len(t, stickyChain.FindAllString(r.dump(model.IPv4), -1), 18000)
}

// The kernel walks all chains for each transaction, whatever that changes. So a sticky port has few, and the change of
// an endpoint without affinity beside many such ports costs nothing else: it is elements.
func TestAStickyPortHasFewChains(t *testing.T) {
	const ports, both = 100, model.ClusterSet | model.LocalSet
	for _, tc := range []struct {
		name      string
		chains    int
		sets      model.EndpointSets
		nodePorts bool
		more      func(*fm.ServiceBuilder) *fm.ServiceBuilder
	}{
		{"a cluster IP", 1, model.ClusterSet, false, func(s *fm.ServiceBuilder) *fm.ServiceBuilder { return s }},
		{"and a load-balancer IP", 3, model.ClusterSet, false, func(s *fm.ServiceBuilder) *fm.ServiceBuilder {
			return s.LoadBalancerIP("203.0.113.9")
		}},
		{"with source ranges", 4, model.ClusterSet, false, func(s *fm.ServiceBuilder) *fm.ServiceBuilder {
			return s.LoadBalancerIP("203.0.113.9").SourceRange("198.51.100.0/24")
		}},
		{"and external policy Local", 6, both, false, func(s *fm.ServiceBuilder) *fm.ServiceBuilder {
			return s.LoadBalancerIP("203.0.113.9").SourceRange("198.51.100.0/24").ExternalLocal()
		}},
		{"and node ports", 7, both, true, func(s *fm.ServiceBuilder) *fm.ServiceBuilder {
			return s.LoadBalancerIP("203.0.113.9").SourceRange("198.51.100.0/24").ExternalLocal()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newStickyRig(t)
			chains := func() int { return strings.Count(r.dump(model.IPv4), "\tchain ") }
			r.Set(fm.Service("other/web").ClusterIP("10.96.0.1").DetectsLocalPods().Port("http", 80).Build())
			r.Set(fm.Endpoint("other/web:http/TCP", "10.244.2.1:80").Build())
			many := fm.Service("many/ports").ClusterIP("10.96.9.9").DetectsLocalPods().Affinity(time.Hour)
			for i := range 1 + ports {
				if many.Port(fmt.Sprint("p", i), uint16(1+i)); tc.nodePorts {
					many.NodePort(uint16(30000 + i))
				}
			}
			all := tc.more(many).Build()
			add := func(from, to int) {
				for i := from; i < to; i++ {
					ep := fm.Endpoint(fmt.Sprintf("many/ports:p%d/TCP", i), "10.244.2.2:80").Build()
					ep.Sets = tc.sets
					r.Set(ep)
				}
				s := *all
				s.Ports = s.Ports[:to]
				r.Set(&s)
				r.Sync()
			}
			add(0, 1) // with the chains that all ports share
			before := chains()
			add(1, 1+ports)
			assert.Equal(t, tc.chains*ports, chains()-before)

			r.Delete(fm.Endpoint("other/web:http/TCP", "10.244.2.1:80").Build().Key())
			r.Set(fm.Endpoint("other/web:http/TCP", "10.244.2.3:80").Build())
			r.Sync()
			assert.Equal(t, []string{
				"delete element ip kube-proxy-lib endpoints { 10.96.0.1 . tcp . 80 . 0 : 10.244.2.3 . 80 }",
				"add element ip kube-proxy-lib endpoints { 10.96.0.1 . tcp . 80 . 0 : 10.244.2.3 . 80 }",
				"commit"}, r.commands(model.IPv4))
		})
	}
}
