package localstate

import (
	"maps"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Class has the properties shared by nodes that get the same services and endpoints, except for the part that concerns
// one node alone: see [NodePart].
type Class struct {
	// Zone is the zone of the nodes.
	Zone string
	// The options with these names.
	NoNodeHints, NoZoneHints, MasqueradeAll, DrainingEndpoints, AllEndpoints bool
	ExtraSets                                                                model.EndpointSets
	// Detects has the families in which the nodes can detect traffic of their own pods.
	Detects model.FamilySet
}

// keeps reports whether an endpoint that is in no set on a node stays in the node's state.
func (c Class) keeps(e *model.Endpoint) bool {
	return keptWithoutSets(e.Port.Protocol, e.Serving, e.Draining(), c.DrainingEndpoints, c.AllEndpoints)
}

// ForClass returns a State for a class of nodes instead of a single one. It knows all the objects that s knows, has the
// options of s except where the class overrides them, and has not handed over anything yet. No endpoint is local in it.
// Its Flush hands over what the nodes of the class have in common; [State.NodeParts] returns the nodes' own parts, and
// [State.ChangedParts] those that have changed. Only the ServiceCIDRs of the model.Node that it hands over are
// meaningful.
//
// s must be a State without a NodeName. The two share memory, but do not write to it, so they may be used concurrently.
func (s *State) ForClass(c Class) *State {
	opts := s.opts
	opts.Options = Options{Families: opts.Families, Zone: c.Zone, NoNodeHints: c.NoNodeHints, NoZoneHints: c.NoZoneHints,
		MasqueradeAll: c.MasqueradeAll, DrainingEndpoints: c.DrainingEndpoints, AllEndpoints: c.AllEndpoints,
		ExtraSets: c.ExtraSets}
	n := newState(s.log, opts)
	n.started = s.started
	n.indexAbove = s.indexAbove
	node := &model.Node{Zone: c.Zone, ServiceCIDRs: s.node.model.ServiceCIDRs}
	for _, f := range model.Families() {
		if c.Detects.Has(f) {
			node.LocalPods.CIDRs = append(node.LocalPods.CIDRs, f.Everything())
		}
	}
	n.node.model = node
	n.node.cidrs = maps.Clone(s.node.cidrs)
	n.skipped = maps.Clone(s.skipped)
	for name, from := range s.services {
		svc := n.service(name)
		if from.intake != nil {
			in := *from.intake
			svc.intake = &in
			n.touchFamilies(svc)
			n.markService(svc)
		}
		for _, slice := range from.slices {
			in := *slice
			in.service = svc
			if s.slices[slice.key()] == slice { // otherwise it does not exist in this form: see hold
				n.slices[in.key()] = &in
			}
			n.addSlice(&in)
			n.markEndpoints(svc, in.family)
		}
		n.copyHold(s, svc, from)
	}
	return n
}

// PendingServices returns the names of the services that the next Flush has to look at, in no particular order.
func (s *State) PendingServices() []model.ServiceName {
	s.limitEndpoints()
	names := make([]model.ServiceName, 0, len(s.dirty))
	for _, svc := range s.dirty {
		names = append(names, svc.name)
	}
	return names
}

// Discard forgets pending changes without computing them, for a State that is only used to create others with
// [State.ForClass].
func (s *State) Discard() {
	for _, svc := range s.dirty {
		delete(s.triggers, svc) // one by one: the cost of clear depends on what the map once held
		svc.serviceChanged, svc.endpointsChanged = false, false
		s.forgetIfEmpty(svc)
	}
	clear(s.dirty) // free what is gone
	s.dirty = s.dirty[:0]
	s.pending = Pending{}
}
