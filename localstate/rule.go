package localstate

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// This file is the rule for a service port in one family, in four steps:
//
//	settle   the entries of slices with the same target are one candidate (S17)
//	count    how many candidates are ready, draining, on this node, and have hints
//	decide   from the counts and the Service: what happens to traffic (S25 to S28), whether topology hints apply (S22)
//	         and draining endpoints are used (S21)
//	sets     which endpoint sets a candidate is in (S21, S22), and whether it is handed over (S40)
//
// A candidate depends on the others only through the result of decide.

// familyPort is a port of a service in one family.
type familyPort struct {
	*State
	svc    *service
	port   *model.ServicePort
	name   model.PortName
	family model.Family
}

func (s *State) familyPort(svc *service, port *model.ServicePort, f model.Family) familyPort {
	return familyPort{s, svc, port, svc.intake.fields.PortName(*port), f}
}

// candidate is one entry of a slice that may serve a service port: an endpoint with a resolved port number.
type candidate struct {
	target netip.AddrPort
	slice  *sliceIntake
	at     int32 // the endpoint's place in the slice
	port   int32 // the port's place in the slice
	flags  endpointFlags
	loses  bool // another entry with the same target is preferred (S17)
}

// place returns where the endpoint is.
func (c *candidate) place() place { return c.slice.places[c.at].Value() }

// settle picks one of several entries with the same target and marks the others (S17). The entries are ordered by slice
// name, then by port and by place in the slice. The most usable one wins. Among equals it is one of the first slice,
// and within that the last or, if they are terminating, the first.
func settle(same []candidate) {
	winner := 0
	for i := 1; i < len(same); i++ {
		c, w := &same[i], &same[winner]
		rank, best := c.flags.rank(), w.flags.rank()
		if rank < best || rank == best && c.slice == w.slice && !c.flags.has(flagTerminating) {
			winner = i
		}
	}
	for i := range same {
		same[i].loses = i != winner
	}
}

// rank orders entries with the same target by how usable they are: lower is better (S17).
func (f endpointFlags) rank() int {
	switch terminating := f.has(flagTerminating); {
	case f.has(flagReady) && !terminating:
		return 0
	case f.has(flagReady):
		return 1
	case f.draining():
		return 2
	case !terminating:
		return 3
	}
	return 4
}

// draining reports whether an endpoint is serving, terminating and not ready: the last resort of S21.
func (f endpointFlags) draining() bool {
	return f&(flagReady|flagServing|flagTerminating) == flagServing|flagTerminating
}

// counts has the numbers of candidates of a port in one family on which the decision about each candidate depends.
type counts struct {
	ready         int32 // usable entries that are ready ...
	draining      int32 // ... and that serve while they terminate
	localReady    int32 // the same on this node
	localDraining int32
	// ready entries that lack a hint, and those whose hints name this node or zone
	withoutNodeHint, withoutZoneHint int32
	forThisNode, forThisZone         int32
}

// any reports whether usable endpoints exist anywhere, regardless of policy and topology (S23).
func (n *counts) any() bool { return n.ready > 0 || n.draining > 0 }

// allHaveNodeHints reports whether node hints count, because all ready entries have one (S22).
func (n *counts) allHaveNodeHints() bool { return n.withoutNodeHint == 0 }

// count adds candidates (sign 1) or subtracts them (sign -1).
func (p *familyPort) count(n *counts, candidates []candidate, sign int32) {
	for i := range candidates {
		c := &candidates[i]
		if c.loses {
			continue
		}
		local := c.flags.has(flagLocal)
		switch {
		case c.flags.has(flagReady):
			n.ready += sign
			if local {
				n.localReady += sign
			}
			if !c.flags.has(flagNodeHints) {
				n.withoutNodeHint += sign
			} else if hintNames(c.place().nodeHints, p.opts.NodeName) {
				n.forThisNode += sign
			}
			if !c.flags.has(flagZoneHints) {
				n.withoutZoneHint += sign
			} else if hintNames(c.place().zoneHints, p.node.model.Zone) {
				n.forThisZone += sign
			}
		case c.flags.draining():
			n.draining += sign
			if local {
				n.localDraining += sign
			}
		}
	}
}

// topology is how the cluster set of a port was narrowed (S22).
type topology uint8

const (
	topologyNone topology = iota // every ready endpoint
	topologyNode                 // those whose hints name this node
	topologyZone                 // those whose hints name this node's zone
)

func (p *familyPort) topology(n *counts) topology {
	switch {
	case n.forThisNode > 0 && n.allHaveNodeHints() && !p.opts.NoNodeHints:
		return topologyNode
	case n.forThisZone > 0 && n.withoutZoneHint == 0 && !p.opts.NoZoneHints:
		return topologyZone
	}
	return topologyNone
}

// rules decide which sets an endpoint is in. All candidates of a port in one family have the same rules: while these
// stay the same, a change of one endpoint does not affect the sets of another.
type rules struct {
	nodeName, zone string
	topology       topology
	anyReady       bool // draining endpoints are not used (S21) ...
	anyLocalReady  bool // ... nor are they used for local traffic
	headless       bool
	inUse          model.EndpointSets
}

// decide returns what happens to the port's traffic (S25 to S28), and the rules for its candidates.
func (p *familyPort) decide(n *counts) (model.Routes, rules) {
	in := p.svc.intake
	routes := model.NewRoutes(model.RoutePolicy{
		Internal:          in.fields.InternalTrafficPolicy,
		External:          in.fields.ExternalTrafficPolicy,
		ClusterIP:         !in.fields.Headless,
		ExternalAddresses: p.port.NodePort != 0 || in.externals.Has(p.family),
		NoEndpoints:       !n.any(),
		DetectsLocalPods:  p.node.model.LocalPods.Detects(p.family),
		MasqueradeAll:     p.opts.MasqueradeAll,
	})
	if in.fields.Headless { // no traffic, so nothing else to decide
		return routes, rules{headless: true, inUse: model.ClusterSet}
	}
	return routes, rules{nodeName: p.opts.NodeName, zone: p.node.model.Zone, topology: p.topology(n),
		anyReady: n.ready > 0, anyLocalReady: n.localReady > 0, inUse: routes.Sets() | p.opts.ExtraSets}
}

// sets decides which of the sets in use a candidate belongs to (S21, S22).
func (r *rules) sets(c *candidate) model.EndpointSets {
	if c.loses {
		return 0
	}
	var sets model.EndpointSets
	local := c.flags.has(flagLocal)
	switch {
	case c.flags.has(flagReady):
		if r.selects(c) {
			sets |= model.ClusterSet
		}
		if local {
			sets |= model.LocalSet
		}
	case c.flags.draining() && !r.headless:
		if !r.anyReady {
			sets |= model.ClusterSet
		}
		if local && !r.anyLocalReady {
			sets |= model.LocalSet
		}
	}
	return sets & r.inUse
}

// selects reports whether topology allows a ready candidate in the cluster set.
func (r *rules) selects(c *candidate) bool {
	switch r.topology {
	case topologyNode:
		return hintNames(c.place().nodeHints, r.nodeName)
	case topologyZone:
		return hintNames(c.place().zoneHints, r.zone)
	}
	return true
}

// handedOver reports whether a candidate is passed to the receiver: if it is in a set or kept without one.
func (c *candidate) handedOver(o *options, sets model.EndpointSets, protocol model.Protocol) bool {
	return sets != 0 || !c.loses && keptWithoutSets(protocol, c.flags.has(flagServing), c.flags.draining(),
		o.DrainingEndpoints, o.AllEndpoints)
}

// keptWithoutSets reports whether an endpoint that is in no set is passed to the receiver: if it serves a UDP port, so
// that its flows do not count as stale (S40); if the options ask for draining endpoints and it is one; or if they ask
// for all.
func keptWithoutSets(protocol model.Protocol, serving, draining, wantsDraining, wantsAll bool) bool {
	return protocol == model.UDP && serving || wantsDraining && draining || wantsAll
}

// model returns the candidate as a model.Endpoint.
func (c *candidate) model(port model.PortName, sets model.EndpointSets) model.Endpoint {
	p := c.place()
	return model.Endpoint{
		Port:        port,
		Target:      c.target,
		Node:        p.node,
		Sets:        sets,
		Local:       c.flags.has(flagLocal),
		Ready:       c.flags.has(flagReady),
		Serving:     c.flags.has(flagServing),
		Terminating: c.flags.has(flagTerminating),
		Details:     p.details,
	}
}
