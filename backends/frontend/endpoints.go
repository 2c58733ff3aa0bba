package frontend

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// endpoints are those of a service port in one family, with their places in the backend sets.
type endpoints struct {
	list  []endpoint
	index map[netip.AddrPort]int32 // into list; nil while it is short enough to look through
	sets  [numSets]slots
}

// endpoint is an endpoint with its slots.
type endpoint struct {
	*model.Endpoint
	slots   [numSets]int32 // -1: not in the set
	hairpin bool           // counted as one that may reach itself (S29)
}

// maxScan is how many endpoints are looked through, one after the other, without an index.
const maxScan = 32

// find returns the place of an endpoint in the list, or -1.
func (e *endpoints) find(target netip.AddrPort) int {
	if e.index != nil {
		if i, ok := e.index[target]; ok {
			return int(i)
		}
		return -1
	}
	for i := range e.list {
		if e.list[i].Target == target {
			return i
		}
	}
	return -1
}

// add appends an endpoint that is in no set yet and returns its place.
func (e *endpoints) add(ep *model.Endpoint) int {
	i := len(e.list)
	if i == 0 {
		e.list = make([]endpoint, 0, 4)
	}
	e.list = append(e.list, endpoint{Endpoint: ep, slots: [numSets]int32{-1, -1, -1}})
	switch {
	case e.index != nil:
		e.index[ep.Target] = int32(i)
	case len(e.list) > maxScan:
		e.index = make(map[netip.AddrPort]int32, 2*len(e.list))
		for j := range e.list {
			e.index[e.list[j].Target] = int32(j)
		}
	}
	return i
}

// remove removes an endpoint that is in no set any more.
func (e *endpoints) remove(i int) {
	last := len(e.list) - 1
	if e.index != nil {
		delete(e.index, e.list[i].Target)
		if i != last {
			e.index[e.list[last].Target] = int32(i)
		}
	}
	e.list[i] = e.list[last]
	e.list[last] = endpoint{}
	if e.list = e.list[:last]; last == 0 {
		e.list, e.index = nil, nil
	}
}

// place puts an endpoint into the sets that it belongs to now, and takes it out of the others. It tells whether a set,
// or an endpoint in a set, is different now.
func (e *endpoints) place(i int, ep *model.Endpoint, member [numSets]bool) bool {
	changed := false
	entry := &e.list[i]
	for s := range e.sets {
		set, slot := &e.sets[s], entry.slots[s]
		switch {
		case member[s] && slot < 0:
			entry.slots[s] = set.put(ep)
		case !member[s] && slot >= 0:
			set.take(slot)
			entry.slots[s] = -1
		case member[s] && set.list[slot] != ep:
			set.replace(slot, ep)
		default:
			continue
		}
		changed = true
	}
	entry.Endpoint = ep
	return changed
}

// compact closes the gaps in the sets.
func (e *endpoints) compact() {
	for s := range e.sets {
		e.sets[s].compact(func(ep *model.Endpoint, to int32) {
			e.list[e.find(ep.Target)].slots[s] = to
		})
	}
}
