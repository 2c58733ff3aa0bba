package frontend

import (
	"cmp"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// slots is a backend set: its endpoints in slots 0 to n-1, which a dataplane can draw from at random. An endpoint keeps
// its slot while the set does not shrink, so that replacing one endpoint changes one slot, whatever the size of the
// set.
type slots struct {
	list []*model.Endpoint
	// free lists the slots that the present wave has emptied. compact fills them from the end.
	free     []int32
	accepted noted[int32, *model.Endpoint] // nil for slots that did not exist
	// tracked: the set has been accepted, so that changes are noted.
	tracked bool
}

// at returns what is in a slot, nil if there is no such slot.
func (s *slots) at(slot int32) *model.Endpoint {
	if int(slot) < len(s.list) {
		return s.list[slot]
	}
	return nil
}

// note remembers what is in a slot before it changes.
func (s *slots) note(slot int32) {
	if s.tracked {
		s.accepted.note(slot, s.at(slot))
	}
}

// put adds an endpoint and returns its slot.
func (s *slots) put(ep *model.Endpoint) int32 {
	if n := len(s.free); n > 0 {
		slot := s.free[n-1]
		s.free = s.free[:n-1]
		s.list[slot] = ep // noted when it became free
		return slot
	}
	slot := int32(len(s.list))
	s.note(slot)
	s.list = append(s.list, ep)
	return slot
}

// replace puts a new version of the same endpoint into its slot.
func (s *slots) replace(slot int32, ep *model.Endpoint) {
	s.note(slot)
	s.list[slot] = ep
}

// take empties a slot.
func (s *slots) take(slot int32) {
	s.note(slot)
	s.list[slot] = nil
	s.free = append(s.free, slot)
}

// size returns the number of endpoints.
func (s *slots) size() int { return len(s.list) - len(s.free) }

// compact moves endpoints from the end of the list into free slots. It calls moved for each.
func (s *slots) compact(moved func(ep *model.Endpoint, to int32)) {
	if len(s.free) == 0 {
		return
	}
	slices.Sort(s.free)
	n := len(s.list) - len(s.free) // what stays
	end := len(s.list)
	for _, slot := range s.free {
		if int(slot) >= n {
			break
		}
		for end--; s.list[end] == nil; end-- {
		}
		ep := s.list[end]
		s.note(int32(end))
		s.list[end], s.list[slot] = nil, ep
		moved(ep, slot)
	}
	s.list = s.list[:n]
	s.free = s.free[:0]
	if cap(s.list) > 64 && n < cap(s.list)/4 {
		s.list = slices.Clone(s.list)
	}
}

// accept makes the next changes relative to the present state. If tracked is false, changes need not be reported.
func (s *slots) accept(tracked bool) { s.accepted, s.tracked = nil, tracked }

// EndpointChange is a slot of a backend set that differs. Before is nil if there was no such slot, After if there is
// none any more. Both may have the same target and differ in other fields of the endpoint.
type EndpointChange struct {
	// Slot is the endpoint's place in the backend set, from 0. If a set shrinks, the endpoints with the highest slots
	// move into the free ones: the slots in use are always 0 to the set's size less one.
	Slot int
	// Before is what the slot had when changes were last accepted, After what it has now. They are read-only.
	Before, After *model.Endpoint
}

// changes returns the slots that differ from what was last accepted, in their order.
func (s *slots) changes() []EndpointChange {
	var list []EndpointChange
	for slot, before := range s.accepted {
		if after := s.at(slot); !before.Equal(after) {
			list = append(list, EndpointChange{Slot: int(slot), Before: before, After: after})
		}
	}
	slices.SortFunc(list, func(a, b EndpointChange) int { return cmp.Compare(a.Slot, b.Slot) })
	return list
}
