package model

import (
	"cmp"
	"net/netip"
)

// EndpointKey identifies an endpoint of a service port. A pod has one endpoint for each of its addresses and each
// service port that it serves, so a dual-stack pod has at least two.
type EndpointKey struct {
	// Port is the service port that the endpoint serves.
	Port PortName `json:"port"`
	// Target is the address and port of the endpoint, as in [Endpoint].
	Target netip.AddrPort `json:"target"`
}

// String returns "namespace/name:port/protocol -> address:port".
func (k EndpointKey) String() string { return k.Port.String() + " -> " + k.Target.String() }

// Compare orders by port name, then by address and port number. IPv4 comes before IPv6.
func (k EndpointKey) Compare(o EndpointKey) int {
	if c := k.Port.Compare(o.Port); c != 0 {
		return c
	}
	return CompareTargets(k.Target, o.Target)
}

// CompareTargets orders by address, IPv4 first, then by port number (S18).
func CompareTargets(a, b netip.AddrPort) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return cmp.Compare(a.Port(), b.Port())
}

// Endpoint is an address and port that serves one service port. Endpoints can be compared with ==.
type Endpoint struct {
	// Port is the service port that the endpoint serves.
	Port PortName `json:"port"`
	// Target is where the traffic goes; named target ports are already resolved.
	Target netip.AddrPort `json:"target"`
	// Node is the name of the node that the endpoint is on, "" if it is not known.
	Node string `json:"node,omitempty"`
	// Sets are the endpoint sets that the endpoint belongs to. It may belong to none: a serving endpoint of a UDP port
	// is handed over even if this node sends no new traffic to it, so that the clean-up of stale flows leaves its
	// existing flows alone (S40). The same goes for draining endpoints of any port, or for all endpoints, if the source
	// of the values is configured to include them.
	Sets EndpointSets `json:"sets"`
	// Local: the endpoint is on this node.
	Local bool `json:"local"`
	// Ready, Serving and Terminating are the endpoint's conditions, for people and for purposes other than routing
	// (weights, statistics, conntrack). Routing depends only on Sets.
	Ready       bool `json:"ready"`
	Serving     bool `json:"serving"`
	Terminating bool `json:"terminating"`
	// Details identifies the endpoint for people. It is zero unless the source of the values is configured to fill it
	// in.
	Details Details `json:"details,omitzero"`
}

// Draining reports whether the endpoint is terminating and still serves its existing connections.
func (e *Endpoint) Draining() bool { return !e.Ready && e.Serving && e.Terminating }

// Key returns the key that identifies the endpoint.
func (e *Endpoint) Key() EndpointKey { return EndpointKey{Port: e.Port, Target: e.Target} }

// Family returns the family of the endpoint's address.
func (e *Endpoint) Family() Family { return FamilyOf(e.Target.Addr()) }

// Equal reports whether two endpoints have the same content.
func (e *Endpoint) Equal(o *Endpoint) bool {
	return e == o || e != nil && o != nil && *e == *o
}
