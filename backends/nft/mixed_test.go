package nft_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/model"
	fm "sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// With external policy Local a chain is for two numbers of endpoints, in the cluster and on the node, of which there
// are very many pairs. An author whose ports pass through all of them leaves few chains behind, and every chain can be
// used again.
func TestAuthorsLeaveFewChainsBehind(t *testing.T) {
	r := newRig(t, nft.Options{Common: frontend.Common{Families: []model.Family{model.IPv4}}})
	const ports, most = 30, 40
	s := fm.Service("evil/local").ClusterIP("10.96.0.1").LoadBalancerIP("203.0.113.1").SourceRange("198.51.100.0/24").
		ExternalIP("203.0.113.2").ExternalLocal().DetectsLocalPods()
	endpoint := func(port, n int, sets model.EndpointSets) *model.Endpoint {
		ep := fm.Endpoint(fmt.Sprintf("evil/local:p%d/TCP", port), fmt.Sprintf("10.244.%d.1:80", n)).Build()
		ep.Sets = sets
		return ep
	}
	for port := range ports {
		s.Port(fmt.Sprint("p", port), uint16(1+port)).NodePort(uint16(30000 + port))
		for n := range 1 + port {
			r.Set(endpoint(port, 100+n, model.ClusterSet))
		}
	}
	service := s.Build()
	r.Set(service, fm.Service("prod/web").ClusterIP("10.96.0.2").LoadBalancerIP("203.0.113.3").ExternalLocal().
		DetectsLocalPods().Port("http", 80).Build())
	for n, sets := range []model.EndpointSets{model.ClusterSet, model.ClusterSet | model.LocalSet} {
		ep := fm.Endpoint("prod/web:http/TCP", fmt.Sprintf("10.244.2.%d:80", n)).Build()
		ep.Sets = sets
		r.Set(ep)
	}
	r.Sync()
	chains := func() int { return strings.Count(r.dump(model.IPv4), "\tchain ") }
	peak := 0
	for _, step := range []int{1, -1} {
		for i := range most {
			n := i // one endpoint more of each port is on the node, or one less
			sets := model.ClusterSet | model.LocalSet
			if step < 0 {
				n, sets = most-1-i, model.ClusterSet
			}
			for port := range ports {
				r.Set(endpoint(port, n, sets))
			}
			r.Sync()
			require.Len(t, r.applied, 2, "nothing is compared again")
			peak = max(peak, chains())
		}
	}
	assert.Less(t, peak, 2000, "for %d pairs, with three chains each", 2*ports*most)
	before := canonical(t, r.dump(model.IPv4))
	r.Restart()
	r.Sync()
	assert.Equal(t, before, canonical(t, r.dump(model.IPv4)))
}
