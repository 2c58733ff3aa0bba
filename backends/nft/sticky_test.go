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

// The kernel walks all chains for each transaction, whatever that changes. So a sticky port has few, and the change of
// an endpoint without affinity beside many such ports costs nothing else: it is elements.
func TestAStickyPortHasFewChains(t *testing.T) {
	const ports = 100
	for _, tc := range []struct {
		name      string
		chains    int
		nodePorts bool
		more      func(*fm.ServiceBuilder) *fm.ServiceBuilder
	}{
		{"a cluster IP", 1, false, func(s *fm.ServiceBuilder) *fm.ServiceBuilder { return s }},
		{"and a load-balancer IP", 3, false, func(s *fm.ServiceBuilder) *fm.ServiceBuilder {
			return s.LoadBalancerIP("203.0.113.9")
		}},
		{"with source ranges", 4, false, func(s *fm.ServiceBuilder) *fm.ServiceBuilder {
			return s.LoadBalancerIP("203.0.113.9").SourceRange("198.51.100.0/24")
		}},
		{"node ports, and external policy Local", 5, true, func(s *fm.ServiceBuilder) *fm.ServiceBuilder {
			return s.LoadBalancerIP("203.0.113.9").SourceRange("198.51.100.0/24").ExternalLocal()
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newStickyRig(t)
			chains := func() int { return strings.Count(r.dump(model.IPv4), "\tchain ") }
			r.Set(fm.Service("other/web").ClusterIP("10.96.0.1").DetectsLocalPods().Port("http", 80).Build())
			r.Set(fm.Endpoint("other/web:http/TCP", "10.244.2.1:80").Build())
			many := tc.more(fm.Service("many/ports").ClusterIP("10.96.9.9").DetectsLocalPods().Affinity(time.Hour))
			add := func(from, to int) {
				for i := from; i < to; i++ {
					many.Port(fmt.Sprint("p", i), uint16(1+i))
					r.Set(fm.Endpoint(fmt.Sprintf("many/ports:p%d/TCP", i), "10.244.2.2:80").Build())
				}
				r.Set(many.Build())
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
