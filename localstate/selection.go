package localstate

import (
	"sigs.k8s.io/kube-proxy-lib/model"
)

// counts has the numbers of candidates of a port in one family that the decision on each candidate depends on.
type counts struct {
	ready         int32 // usable entries that are ready ...
	draining      int32 // ... and that serve while they terminate
	localReady    int32 // the same on this node
	localDraining int32
	// ready entries that lack a hint, and those whose hints name this node or zone
	withoutNodeHint, withoutZoneHint int32
	forThisNode, forThisZone         int32
}

// any reports whether usable endpoints exist anywhere, whatever policy and topology say (S23).
func (n *counts) any() bool { return n.ready > 0 || n.draining > 0 }

// topology is how the cluster set of a port was narrowed (S22).
type topology uint8

const (
	topologyNone topology = iota // every ready endpoint
	topologyNode                 // those whose hints name this node
	topologyZone                 // those whose hints name this node's zone
)

func (n *counts) topology() topology {
	switch {
	case n.forThisNode > 0 && n.withoutNodeHint == 0:
		return topologyNode
	case n.forThisZone > 0 && n.withoutZoneHint == 0:
		return topologyZone
	}
	return topologyNone
}

// draining: serving while it terminates, and not ready, the last resort of S21.
func (f endpointFlags) draining() bool {
	return f&(flagReady|flagServing|flagTerminating) == flagServing|flagTerminating
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

// counter counts candidates for one node.
type counter struct{ nodeName, zone string }

// count adds candidates (sign 1) or subtracts them (sign -1).
func (k counter) count(n *counts, candidates []candidate, sign int32) {
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
			} else if hintNames(c.place().nodeHints, k.nodeName) {
				n.forThisNode += sign
			}
			if !c.flags.has(flagZoneHints) {
				n.withoutZoneHint += sign
			} else if hintNames(c.place().zoneHints, k.zone) {
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

// selects reports whether topology lets a ready candidate into the cluster set.
func (r *rules) selects(c *candidate) bool {
	switch r.topology {
	case topologyNode:
		return hintNames(c.place().nodeHints, r.nodeName)
	case topologyZone:
		return hintNames(c.place().zoneHints, r.zone)
	}
	return true
}
