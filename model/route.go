package model

import (
	"fmt"
	"strings"
)

// EndpointSets is a bit set of the two endpoint sets that a service port has on this node. In an [Endpoint] it says
// which sets the endpoint belongs to; in a [Route] it names exactly one set, or none if the route carries no traffic.
type EndpointSets uint8

const (
	// ClusterSet is the set for traffic that may leave the node: the ready endpoints that topology hints select for
	// this node or, if no endpoint is ready, those that still serve while they terminate (S21, S22).
	ClusterSet EndpointSets = 1 << iota
	// LocalSet is the set for traffic that must stay on the node: the ready endpoints of this node or, if there are
	// none, those of this node that still serve while they terminate (S21). Topology hints do not apply to it.
	LocalSet
)

// Has reports whether all the sets in x are in s. Has(0) is false.
func (s EndpointSets) Has(x EndpointSets) bool { return x != 0 && s&x == x }

// String returns "Cluster", "Local", "Cluster,Local" or "-".
func (s EndpointSets) String() string {
	if s > ClusterSet|LocalSet {
		return fmt.Sprintf("EndpointSets(%#x)", uint8(s))
	}
	return [...]string{0: "-", ClusterSet: "Cluster", LocalSet: "Local", ClusterSet | LocalSet: "Cluster,Local"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s EndpointSets) MarshalText() ([]byte, error) {
	if s > ClusterSet|LocalSet {
		return nil, fmt.Errorf("unknown endpoint set in %#x", uint8(s))
	}
	return []byte(s.String()), nil
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (s *EndpointSets) UnmarshalText(b []byte) error {
	var sets EndpointSets
	if text := string(b); text != "-" {
		for name := range strings.SplitSeq(text, ",") {
			switch name {
			case "Cluster":
				sets |= ClusterSet
			case "Local":
				sets |= LocalSet
			default:
				return fmt.Errorf("unknown endpoint set %q", name)
			}
		}
	}
	*s = sets
	return nil
}

// Masquerade says for which sources a backend rewrites the source address to one of the node's addresses. Connections
// from an endpoint to itself (hairpin) are masqueraded in any case (S29).
type Masquerade uint8

const (
	MasqueradeNever          Masquerade = iota // except hairpin connections, as above
	MasqueradeAlways                           // whatever the source
	MasqueradeUnlessLocalPod                   // unless Node.LocalPods says that the source is a pod of this node
)

// String returns "Never", "Always" or "UnlessLocalPod".
func (m Masquerade) String() string {
	return name(m, "Masquerade", "Never", "Always", "UnlessLocalPod")
}

// MarshalText implements encoding.TextMarshaler.
func (m Masquerade) MarshalText() ([]byte, error) {
	return formatText(m, "masquerade", MasqueradeNever, MasqueradeAlways, MasqueradeUnlessLocalPod)
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (m *Masquerade) UnmarshalText(b []byte) error {
	return parseText(b, m, "masquerade", MasqueradeNever, MasqueradeAlways, MasqueradeUnlessLocalPod)
}

// Verdict says what happens to new connections when a route's endpoint set is empty. Established connections are left
// alone.
type Verdict uint8

const (
	Reject Verdict = iota // refuse at once: ICMP port unreachable, or the dataplane's equivalent
	Drop                  // discard silently
)

// String returns "Reject" or "Drop".
func (v Verdict) String() string {
	return name(v, "Verdict", "Reject", "Drop")
}

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) {
	return formatText(v, "verdict", Reject, Drop)
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (v *Verdict) UnmarshalText(b []byte) error {
	return parseText(b, v, "verdict", Reject, Drop)
}

// Route says what to do with one kind of traffic for one service port in one family. The zero Route carries no traffic:
// the service port has no address of that kind.
type Route struct {
	// Endpoints is the set to balance over, ClusterSet or LocalSet; 0 if there is no such traffic.
	Endpoints EndpointSets `json:"endpoints"`
	// Masquerade says whether the source address is rewritten.
	Masquerade Masquerade `json:"masquerade"`
	// Empty is what happens to new connections while the set has no endpoint.
	Empty Verdict `json:"empty"`
}

// IsZero reports whether the route carries no traffic.
func (r Route) IsZero() bool { return r == Route{} }

// String returns a readable form, for example "Local, masquerade Never, if empty Drop".
func (r Route) String() string {
	if r.IsZero() {
		return "none"
	}
	return fmt.Sprintf("%v, masquerade %v, if empty %v", r.Endpoints, r.Masquerade, r.Empty)
}

// Routes has the decisions for one service port in one family, one for each kind of traffic. A backend checks for the
// kinds in this order: traffic to the cluster IP; traffic to an external address from a pod of this node
// (Node.LocalPods); from the node itself (an address of the node as source); from anywhere else.
//
// An external address is an external IP, a load-balancer VIP, or a node port. A service proxy does not deal with
// traffic that is addressed to the endpoint itself.
type Routes struct {
	// ClusterIP is for traffic to the cluster IP, from anywhere.
	ClusterIP Route `json:"clusterIP,omitzero"`
	// External is for traffic to an external address from anywhere but this node and its pods.
	External Route `json:"external,omitzero"`
	// ExternalFromPod is for traffic to an external address from a pod of this node. It equals External if such traffic
	// cannot be recognised (no local-traffic detector).
	ExternalFromPod Route `json:"externalFromPod,omitzero"`
	// ExternalFromNode is for traffic to an external address from the node itself: host processes and pods in the
	// host's network.
	ExternalFromNode Route `json:"externalFromNode,omitzero"`
}

// Sets returns the endpoint sets that any of the routes uses (S10).
func (r Routes) Sets() EndpointSets {
	return r.ClusterIP.Endpoints | r.External.Endpoints | r.ExternalFromPod.Endpoints | r.ExternalFromNode.Endpoints
}

// RoutePolicy is the input of the decision table.
type RoutePolicy struct {
	Internal TrafficPolicy // internalTrafficPolicy
	External TrafficPolicy // externalTrafficPolicy, where it is honoured (S9)
	// ClusterIP and ExternalAddresses say which kinds of addresses the port has in this family (S10).
	ClusterIP, ExternalAddresses bool
	// NoEndpoints: no usable endpoint exists anywhere, whatever the policies say (S23, S25).
	NoEndpoints bool
	// DetectsLocalPods: the node can tell that a source is one of its own pods (S30).
	DetectsLocalPods bool
	// MasqueradeAll masquerades all traffic to cluster IPs (S28).
	MasqueradeAll bool
}

// NewRoutes is the decision table, S25 to S28:
//
//	traffic                                 policy   endpoints  masquerade  if empty
//	to the cluster IP                       Cluster  cluster    (1)         reject
//	to the cluster IP                       Local    local      (1)         drop (2)
//	to an external address, from anywhere   Cluster  cluster    always      reject
//	to an external address, from elsewhere  Local    local      never       drop (2)
//	... from a pod of this node             Local    cluster    never       reject
//	... from such a pod, without detector   Local    local      never       drop (2)
//	... from the node itself                Local    cluster    always      reject
//
// (1) with MasqueradeAll: always; else with a detector: unless the source is a pod of this node; else: never. The
// traffic policy does not matter.
//
// (2) reject if no usable endpoint exists anywhere: no other node can serve the client either, so it is refused at
// once.
func NewRoutes(p RoutePolicy) Routes {
	emptyLocal := Drop
	if p.NoEndpoints {
		emptyLocal = Reject
	}
	var r Routes
	if p.ClusterIP {
		switch {
		case p.MasqueradeAll:
			r.ClusterIP.Masquerade = MasqueradeAlways
		case p.DetectsLocalPods:
			r.ClusterIP.Masquerade = MasqueradeUnlessLocalPod
		}
		r.ClusterIP.Endpoints = ClusterSet
		if p.Internal == TrafficPolicyLocal {
			r.ClusterIP.Endpoints, r.ClusterIP.Empty = LocalSet, emptyLocal
		}
	}
	if !p.ExternalAddresses {
		return r
	}
	if p.External == TrafficPolicyCluster {
		always := Route{Endpoints: ClusterSet, Masquerade: MasqueradeAlways, Empty: Reject}
		r.External, r.ExternalFromPod, r.ExternalFromNode = always, always, always
		return r
	}
	r.External = Route{Endpoints: LocalSet, Masquerade: MasqueradeNever, Empty: emptyLocal}
	r.ExternalFromPod = r.External
	if p.DetectsLocalPods {
		r.ExternalFromPod = Route{Endpoints: ClusterSet, Masquerade: MasqueradeNever, Empty: Reject}
	}
	r.ExternalFromNode = Route{Endpoints: ClusterSet, Masquerade: MasqueradeAlways, Empty: Reject}
	return r
}
