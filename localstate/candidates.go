package localstate

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// candidate is one entry of a slice that may serve a service port: an endpoint with a resolved port number.
type candidate struct {
	target   netip.AddrPort
	endpoint *sliceEndpoint
	slice    *sliceIntake
	order    int  // place among all candidates of the port as collected: by slice name, then by place in the slice
	loses    bool // another entry with the same target is preferred (S17)
}

// collect gathers what serves a port of a service in one family, sorted by target (S15, S18), and marks the losers among
// duplicates. It reuses buf.
func collect(buf []candidate, svc *service, name string, protocol model.Protocol, f model.Family) []candidate {
	clear(buf) // let go of the slices of another service
	buf = buf[:0]
	for _, s := range svc.slices {
		if s.family != f {
			continue
		}
		for _, p := range s.ports {
			if p.name != name || p.protocol != protocol {
				continue
			}
			for i := range s.endpoints {
				e := &s.endpoints[i]
				if !e.addr.IsValid() {
					continue
				}
				buf = append(buf, candidate{target: netip.AddrPortFrom(e.addr, p.number), endpoint: e, slice: s, order: len(buf)})
			}
		}
	}
	slices.SortFunc(buf, func(a, b candidate) int {
		if c := model.CompareTargets(a.target, b.target); c != 0 {
			return c
		}
		return cmp.Compare(a.order, b.order)
	})
	rest := buf
	for len(rest) > 0 {
		n := 1
		for n < len(rest) && rest[n].target == rest[0].target {
			n++
		}
		if n > 1 {
			settle(rest[:n])
		}
		rest = rest[n:]
	}
	return buf
}

// settle finds the winner among several entries with the same target, in the order in which they were collected, and marks
// the others (S17). Each slice is represented by its last entry that is not terminating or, if all are, by its first.
// (Unlike kube-proxy, whose answer across slices depends on map order.)
func settle(same []candidate) {
	winner := -1
	for i := 0; i < len(same); {
		own := i
		for i++; i < len(same) && same[i].slice == same[own].slice; i++ {
			if !same[i].endpoint.flags.has(flagTerminating) {
				own = i
			}
		}
		if winner < 0 || same[own].preferredTo(&same[winner]) {
			winner = own
		}
	}
	for i := range same {
		same[i].loses = i != winner
	}
}

// preferredTo is S17 across slices: a live entry wins over a terminating one, then a ready one over an unready one, then
// the one of the slice whose name comes first, which is o's.
func (c *candidate) preferredTo(o *candidate) bool {
	terminating, oTerminating := c.endpoint.flags.has(flagTerminating), o.endpoint.flags.has(flagTerminating)
	if terminating != oTerminating {
		return !terminating
	}
	return c.endpoint.flags.has(flagReady) && !o.endpoint.flags.has(flagReady)
}

// topology is how the cluster set of a port was narrowed (S22).
type topology uint8

const (
	topologyNone topology = iota // every ready endpoint
	topologyNode                 // those whose hints name this node
	topologyZone                 // those whose hints name this node's zone
)

// selection is what has to be known of all candidates of a port to decide on each of them.
type selection struct {
	nodeName, zone string
	topology       topology
	ready          int // usable entries that are ready ...
	draining       int // ... and that serve while they terminate
	localReady     int // the same on this node
	localDraining  int
	// for Explain: ready entries that lack a hint, and those whose hints name this node or zone
	withoutNodeHint, withoutZoneHint int
	forThisNode, forThisZone         int
}

// draining: serving while it terminates, and not ready, the last resort of S21.
func (f endpointFlags) draining() bool {
	return f&(flagReady|flagServing|flagTerminating) == flagServing|flagTerminating
}

// selectFrom looks at all candidates of a port in one family.
func selectFrom(candidates []candidate, nodeName, zone string) selection {
	s := selection{nodeName: nodeName, zone: zone}
	for i := range candidates {
		c := &candidates[i]
		if c.loses {
			continue
		}
		flags := c.endpoint.flags
		local := flags.has(flagLocal)
		switch {
		case flags.has(flagReady):
			s.ready++
			if local {
				s.localReady++
			}
			if !flags.has(flagNodeHints) {
				s.withoutNodeHint++
			} else if s.namesNode(c) {
				s.forThisNode++
			}
			if !flags.has(flagZoneHints) {
				s.withoutZoneHint++
			} else if s.namesZone(c) {
				s.forThisZone++
			}
		case flags.draining():
			s.draining++
			if local {
				s.localDraining++
			}
		}
	}
	switch {
	case s.forThisNode > 0 && s.withoutNodeHint == 0:
		s.topology = topologyNode
	case s.forThisZone > 0 && s.withoutZoneHint == 0:
		s.topology = topologyZone
	}
	return s
}

func (s *selection) namesNode(c *candidate) bool {
	return hintNames(c.endpoint.place.Value().nodeHints, s.nodeName)
}

func (s *selection) namesZone(c *candidate) bool {
	return hintNames(c.endpoint.place.Value().zoneHints, s.zone)
}

// any tells whether usable endpoints exist anywhere, whatever policy and topology say (S23).
func (s *selection) any() bool { return s.ready > 0 || s.draining > 0 }

// sets decides which of the sets in use a candidate belongs to (S21, S22).
func (s *selection) sets(c *candidate, inUse model.EndpointSets) model.EndpointSets {
	if c.loses {
		return 0
	}
	flags := c.endpoint.flags
	var sets model.EndpointSets
	if flags.has(flagReady) {
		if s.topology == topologyNone || s.topology == topologyNode && s.namesNode(c) || s.topology == topologyZone && s.namesZone(c) {
			sets |= model.ClusterSet
		}
		if flags.has(flagLocal) {
			sets |= model.LocalSet
		}
	} else if flags.draining() {
		if s.ready == 0 {
			sets |= model.ClusterSet
		}
		if flags.has(flagLocal) && s.localReady == 0 {
			sets |= model.LocalSet
		}
	}
	return sets & inUse
}

// handedOver tells whether the receiver gets to know a candidate: if it is in a set or, on a UDP port, if it serves, so
// that its flows are not taken for stale ones (S40).
func (c *candidate) handedOver(sets model.EndpointSets, protocol model.Protocol) bool {
	return sets != 0 || protocol == model.UDP && !c.loses && c.endpoint.flags.has(flagServing)
}

// endpoint makes the model's value.
func (c *candidate) model(port model.PortName, sets model.EndpointSets) model.Endpoint {
	flags := c.endpoint.flags
	return model.Endpoint{
		Port:        port,
		Target:      c.target,
		Node:        c.endpoint.place.Value().node,
		Sets:        sets,
		Local:       flags.has(flagLocal),
		Ready:       flags.has(flagReady),
		Serving:     flags.has(flagServing),
		Terminating: flags.has(flagTerminating),
	}
}
