package nft_test

import (
	"context"
	"regexp"
	"slices"
	"testing"

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
