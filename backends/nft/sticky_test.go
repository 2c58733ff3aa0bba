package nft_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
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
	set := func(name string, number, endpoints int, ports ...string) {
		b := fm.Service(name).ClusterIP(fmt.Sprintf("10.96.0.%d", number)).Affinity(time.Hour)
		for i, port := range ports {
			b.Port(port, uint16(80+i))
			for n := range endpoints {
				r.Set(fm.Endpoint(fmt.Sprintf("%s:%s/TCP", name, port),
					fmt.Sprintf("10.%d.%d.%d:%d", 100+number, n>>8, n&255, 8080+i)).Build())
			}
		}
		r.Set(b.Build())
	}
	sticky := func() (ports []string) {
		for _, found := range stickyChain.FindAllStringSubmatch(r.dump(model.IPv4), -1) {
			ports = append(ports, found[1])
		}
		slices.Sort(ports)
		return ports
	}
	r.Set(backendtest.Node())
	set("evil/big", 1, limits.Service/2, "a", "b")
	set("prod/web", 2, 10, "http")
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
