package frontend

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Hairpins returns the addresses of endpoints that can now, or can no longer, reach themselves through a service with
// their own source address: such connections have to be masqueraded (S29). With Full all of them are reported as added.
func (c *Changes) Hairpins() Diff[netip.Addr] { return c.family.hairpins.changes(c.asNew) }

// countHairpin counts an endpoint, or no longer does. used has those sets of the endpoint's port that routes use.
func (p *port) countHairpin(e *endpoint, used model.EndpointSets) {
	hairpin := used != 0 && p.reachesItself(e.Endpoint, used)
	if hairpin == e.hairpin {
		return
	}
	if e.hairpin = hairpin; hairpin {
		p.family.hairpins.add(e.Target.Addr())
	} else {
		p.family.hairpins.remove(e.Target.Addr())
	}
}

// reachesItself reports whether a connection from an endpoint to itself might keep its source address without S29.
// Endpoints of this node always count; others only if a route balances over them, so there are few.
func (p *port) reachesItself(ep *model.Endpoint, used model.EndpointSets) bool {
	if ep.Local {
		return true
	}
	asPod := slices.ContainsFunc(p.family.localPods, func(r netip.Prefix) bool { return r.Contains(ep.Target.Addr()) })
	keeps := func(r model.Route, isSource bool) bool {
		return used.Has(r.Endpoints) && isSource &&
			(r.Masquerade == model.MasqueradeNever || r.Masquerade == model.MasqueradeUnlessLocalPod && asPod)
	}
	r := p.current.Routes
	return keeps(r.ClusterIP, true) || keeps(r.External, true) || keeps(r.ExternalFromPod, asPod)
}
