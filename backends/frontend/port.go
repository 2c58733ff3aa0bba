package frontend

import (
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Port is a service port in one family: everything that its frontends share.
type Port struct {
	// Name is the same in both families.
	Name model.PortName
	// Routes are those of this family.
	Routes model.Routes
	// AffinityTimeout is the timeout of session affinity by client IP, at least a second; 0 means no affinity (S32).
	AffinityTimeout time.Duration
	// SourceRanges are the sources that may use load-balancer IPs (S26); nil means all.
	SourceRanges []netip.Prefix
	// Extra is the result of Options.Extra for the service, nil without such a function.
	Extra any

	sizes     [numSets]int
	frontends counts
}

// counts are how many frontends there are of each kind.
type counts [NodePort + 1]int32

func (c *counts) total() (n int) {
	for _, ofKind := range c {
		n += int(ofKind)
	}
	return n
}

// NumFrontends returns how many frontends the port has: those that it asks for and owns.
func (p *Port) NumFrontends() int { return p.frontends.total() }

// Count returns how many of them are of a kind.
func (p *Port) Count(k Kind) int { return int(p.frontends[k]) }

// Restricts reports whether frontends of a kind are restricted to SourceRanges.
func (p *Port) Restricts(k Kind) bool { return k == LoadBalancerIP && len(p.SourceRanges) > 0 }

// Size returns how many endpoints are in a backend set: [model.ClusterSet], [model.LocalSet] or [Draining]. Any other
// value, such as the 0 of a route that carries no traffic, has none.
func (p *Port) Size(set model.EndpointSets) int {
	if i := setIndex(set); i >= 0 {
		return p.sizes[i]
	}
	return 0
}

// SourceRoutes are the routes of a frontend for each kind of source. Check for the kinds in this order (S27).
type SourceRoutes struct {
	FromPod  model.Route // from a pod of this node
	FromNode model.Route // from the node itself
	Other    model.Route // from anywhere else
}

// Same reports whether the source makes no difference.
func (r SourceRoutes) Same() bool { return r.FromPod == r.Other && r.FromNode == r.Other }

// Sets returns the backend sets that the routes use.
func (r SourceRoutes) Sets() model.EndpointSets {
	return r.FromPod.Endpoints | r.FromNode.Endpoints | r.Other.Endpoints
}

// RoutesOf returns the routes of the port's frontends of a kind.
func (p *Port) RoutesOf(k Kind) SourceRoutes {
	r := p.Routes
	if k == ClusterIP {
		return SourceRoutes{FromPod: r.ClusterIP, FromNode: r.ClusterIP, Other: r.ClusterIP}
	}
	return SourceRoutes{FromPod: r.ExternalFromPod, FromNode: r.ExternalFromNode, Other: r.External}
}

// equal reports whether two ports have the same content.
func (p *Port) equal(o *Port) bool {
	return p.Name == o.Name && p.Routes == o.Routes && p.AffinityTimeout == o.AffinityTimeout && p.sizes == o.sizes &&
		p.frontends == o.frontends && p.Extra == o.Extra &&
		sameRanges(p.SourceRanges, o.SourceRanges)
}

// sameRanges reports whether two lists are equal. Those of one service are usually the same list.
func sameRanges(a, b []netip.Prefix) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// Draining is the backend set of the endpoints that get no new connections by any route and still serve their existing
// ones. No route uses it; it is for dataplanes that distinguish a draining endpoint from one that is gone. With
// [Options.AllEndpoints] it has those that do not serve as well; otherwise they are in no backend set.
const Draining model.EndpointSets = 1 << 7

// RouteSets are the backend sets that routes can point at.
func RouteSets() []model.EndpointSets { return []model.EndpointSets{model.ClusterSet, model.LocalSet} }

// BackendSets are all backend sets.
func BackendSets() [numSets]model.EndpointSets {
	return [numSets]model.EndpointSets{model.ClusterSet, model.LocalSet, Draining}
}

// numSets is the number of backend sets of a port.
const numSets = 3

// setIndex is the place of a backend set in BackendSets, -1 if set names none.
func setIndex(set model.EndpointSets) int {
	switch set {
	case model.ClusterSet:
		return 0
	case model.LocalSet:
		return 1
	case Draining:
		return 2
	}
	return -1
}
