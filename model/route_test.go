package model_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// when is a condition of a row of the decision table: the row applies if it is true, if it is false, or in either case.
type when int

const (
	either when = iota
	yes
	no
)

func (w when) holds(is bool) bool { return w == either || is == (w == yes) }

// row is a row of the decision table: under these conditions, this is the route.
type row struct {
	local       when // the traffic policy of this kind of traffic is Local
	detector    when // the node can tell that a source is one of its pods
	all         when // masqueradeAll
	noEndpoints when // there is no usable endpoint anywhere

	route string
}

// The decision table, spelled out from S25 to S28 and not from the code. A condition that a row does not name makes no
// difference; the policy of the other kind of traffic never does.
var (
	toClusterIP = []row{
		{local: no, all: yes, route: "Cluster, masquerade Always, if empty Reject"},
		{local: no, all: no, detector: yes, route: "Cluster, masquerade UnlessLocalPod, if empty Reject"},
		{local: no, all: no, detector: no, route: "Cluster, masquerade Never, if empty Reject"},
		{local: yes, all: yes, noEndpoints: no, route: "Local, masquerade Always, if empty Drop"},
		{local: yes, all: yes, noEndpoints: yes, route: "Local, masquerade Always, if empty Reject"},
		{local: yes, all: no, detector: yes, noEndpoints: no, route: "Local, masquerade UnlessLocalPod, if empty Drop"},
		{local: yes, all: no, detector: yes, noEndpoints: yes,
			route: "Local, masquerade UnlessLocalPod, if empty Reject"},
		{local: yes, all: no, detector: no, noEndpoints: no, route: "Local, masquerade Never, if empty Drop"},
		{local: yes, all: no, detector: no, noEndpoints: yes, route: "Local, masquerade Never, if empty Reject"},
	}
	fromOutside = []row{
		{local: no, route: "Cluster, masquerade Always, if empty Reject"},
		{local: yes, noEndpoints: no, route: "Local, masquerade Never, if empty Drop"},
		{local: yes, noEndpoints: yes, route: "Local, masquerade Never, if empty Reject"},
	}
	fromLocalPod = []row{
		{local: no, route: "Cluster, masquerade Always, if empty Reject"},
		{local: yes, detector: yes, route: "Cluster, masquerade Never, if empty Reject"},
		{local: yes, detector: no, noEndpoints: no, route: "Local, masquerade Never, if empty Drop"},
		{local: yes, detector: no, noEndpoints: yes, route: "Local, masquerade Never, if empty Reject"},
	}
	fromNode = []row{
		{route: "Cluster, masquerade Always, if empty Reject"},
	}
)

func lookUp(t *testing.T, table []row, policy model.TrafficPolicy, p model.RoutePolicy) string {
	t.Helper()
	var found []string
	for _, r := range table {
		if r.local.holds(policy == model.TrafficPolicyLocal) && r.detector.holds(p.DetectsLocalPods) &&
			r.all.holds(p.MasqueradeAll) && r.noEndpoints.holds(p.NoEndpoints) {
			found = append(found, r.route)
		}
	}
	require.Len(t, found, 1, "rows for %+v", p)
	return found[0]
}

// allPolicies returns every RoutePolicy there is.
func allPolicies() []model.RoutePolicy {
	var all []model.RoutePolicy
	for bits := range 1 << 7 {
		bit := func(n int) bool { return bits&(1<<n) != 0 }
		p := model.RoutePolicy{
			ClusterIP: bit(0), ExternalAddresses: bit(1), NoEndpoints: bit(2), DetectsLocalPods: bit(3),
			MasqueradeAll: bit(4),
		}
		if bit(5) {
			p.Internal = model.TrafficPolicyLocal
		}
		if bit(6) {
			p.External = model.TrafficPolicyLocal
		}
		all = append(all, p)
	}
	return all
}

func TestNewRoutesIsTheDecisionTable(t *testing.T) {
	for _, p := range allPolicies() {
		want := [4]string{"none", "none", "none", "none"}
		if p.ClusterIP {
			want[0] = lookUp(t, toClusterIP, p.Internal, p)
		}
		if p.ExternalAddresses {
			want[1] = lookUp(t, fromOutside, p.External, p)
			want[2] = lookUp(t, fromLocalPod, p.External, p)
			want[3] = lookUp(t, fromNode, p.External, p)
		}
		r := model.NewRoutes(p)
		assert.Equal(t, want,
			[4]string{r.ClusterIP.String(), r.External.String(), r.ExternalFromPod.String(),
				r.ExternalFromNode.String()}, "%+v", p)
	}
}

func TestRoutesUseTheSetsOfS10(t *testing.T) {
	for _, p := range allPolicies() {
		iTPLocal, eTPLocal := p.Internal == model.TrafficPolicyLocal, p.External == model.TrafficPolicyLocal
		usesCluster := p.ClusterIP && !iTPLocal || p.ExternalAddresses
		usesLocal := p.ClusterIP && iTPLocal || eTPLocal && p.ExternalAddresses
		sets := model.NewRoutes(p).Sets()
		assert.Equal(t, usesCluster, sets.Has(model.ClusterSet), "%+v", p)
		assert.Equal(t, usesLocal, sets.Has(model.LocalSet), "%+v", p)
	}
}

// The cases that re-implementations get wrong, where routes decide them.
func TestHardCasesOfRoutes(t *testing.T) {
	loadBalancer := model.RoutePolicy{ClusterIP: true, ExternalAddresses: true, External: model.TrafficPolicyLocal,
		DetectsLocalPods: true}
	with := func(p model.RoutePolicy, change func(*model.RoutePolicy)) model.Routes {
		change(&p)
		return model.NewRoutes(p)
	}
	same := func(*model.RoutePolicy) {}
	detectorOff := func(p *model.RoutePolicy) { p.DetectsLocalPods = false }

	t.Run("case 4: with eTP Local the union of the sets is needed, cluster endpoints too", func(t *testing.T) {
		assert.Equal(t, model.ClusterSet|model.LocalSet, with(loadBalancer, same).Sets())
	})
	t.Run("case 6: eTP Local is ignored where the service has no external address", func(t *testing.T) {
		r := with(loadBalancer, func(p *model.RoutePolicy) { p.ExternalAddresses = false })
		assert.Equal(t, model.ClusterSet, r.Sets())
		assert.True(t, r.External.IsZero() && r.ExternalFromPod.IsZero() && r.ExternalFromNode.IsZero())
	})
	t.Run("case 7: iTP Local without external address has no use for the cluster set, yet drops while there is any "+
		"endpoint", func(t *testing.T) {
		r := model.NewRoutes(model.RoutePolicy{ClusterIP: true, Internal: model.TrafficPolicyLocal})
		assert.Equal(t, model.LocalSet, r.Sets())
		assert.Equal(t, model.Drop, r.ClusterIP.Empty)
	})
	t.Run("case 8: terminating endpoints only elsewhere: the cluster IP reaches them, external traffic is dropped, "+
		"not rejected", func(t *testing.T) {
		r := with(loadBalancer, same) // they are usable: NoEndpoints is false
		assert.Equal(t, model.ClusterSet, r.ClusterIP.Endpoints)
		assert.Equal(t, model.LocalSet, r.External.Endpoints)
		assert.Equal(t, model.Drop, r.External.Empty)
	})
	t.Run("case 9: no usable endpoint anywhere: everything is rejected", func(t *testing.T) {
		for _, p := range allPolicies() {
			p.NoEndpoints = true
			r := model.NewRoutes(p)
			for _, route := range []model.Route{r.ClusterIP, r.External, r.ExternalFromPod, r.ExternalFromNode} {
				assert.Equal(t, model.Reject, route.Empty, "%+v", p)
			}
		}
	})
	t.Run("case 11: pod to VIP with eTP Local: all endpoints, no SNAT", func(t *testing.T) {
		r := with(loadBalancer, same).ExternalFromPod
		assert.Equal(t, model.Route{Endpoints: model.ClusterSet, Masquerade: model.MasqueradeNever,
			Empty: model.Reject}, r)
	})
	t.Run("case 11: pod to VIP with eTP Local, without a detector: local only", func(t *testing.T) {
		r := with(loadBalancer, detectorOff)
		assert.Equal(t, r.External, r.ExternalFromPod)
		assert.Equal(t, model.LocalSet, r.ExternalFromPod.Endpoints)
	})
	t.Run("case 12: node to node port with eTP Local: all endpoints, with SNAT", func(t *testing.T) {
		for _, change := range []func(*model.RoutePolicy){same, detectorOff} {
			r := with(loadBalancer, change).ExternalFromNode
			assert.Equal(t, model.Route{Endpoints: model.ClusterSet, Masquerade: model.MasqueradeAlways,
				Empty: model.Reject}, r)
		}
	})
	t.Run("case 13: an external client of a cluster IP with iTP Local gets a local endpoint, still with SNAT",
		func(t *testing.T) {
			r := with(loadBalancer, func(p *model.RoutePolicy) { p.Internal = model.TrafficPolicyLocal }).ClusterIP
			assert.Equal(t, model.Route{Endpoints: model.LocalSet, Masquerade: model.MasqueradeUnlessLocalPod,
				Empty: model.Drop}, r)
		})
	t.Run("case 14: masqueradeAll is for cluster IPs: pod to VIP with eTP Local keeps its source", func(t *testing.T) {
		r := with(loadBalancer, func(p *model.RoutePolicy) { p.MasqueradeAll = true })
		assert.Equal(t, model.MasqueradeAlways, r.ClusterIP.Masquerade)
		assert.Equal(t, model.MasqueradeNever, r.ExternalFromPod.Masquerade)
		assert.Equal(t, model.MasqueradeNever, r.External.Masquerade)
	})
}

func TestEndpointSetsHas(t *testing.T) {
	const none, cluster, local, both = model.EndpointSets(0), model.ClusterSet, model.LocalSet,
		model.ClusterSet | model.LocalSet
	for _, c := range []struct {
		set, x model.EndpointSets
		has    bool
	}{
		{none, none, false}, {none, cluster, false}, {cluster, none, false}, {cluster, cluster, true},
		{cluster, local, false},
		{cluster, both, false}, {both, cluster, true}, {both, local, true}, {both, both, true}, {both, none, false},
	} {
		assert.Equal(t, c.has, c.set.Has(c.x), fmt.Sprintf("%v in %v", c.x, c.set))
	}
}
