package frontend

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// endpoints are those of a service port in one family, with their places in the backend sets.
type endpoints struct {
	list[netip.AddrPort, endpoint]
	sets [numSets]slots
}

// endpoint is an endpoint with its slots.
type endpoint struct {
	*model.Endpoint
	slots   [numSets]int32 // -1: not in the set
	hairpin bool           // counted as one that may reach itself (S29)
}

func (e endpoint) key() netip.AddrPort { return e.Target }

// makeRoom allocates memory for the first n endpoints, which are about to be added: growing step by step takes almost
// three times as much.
func (e *endpoints) makeRoom(n int) {
	e.all = make([]endpoint, 0, n)
	if cluster := &e.sets[setIndex(model.ClusterSet)]; cluster.list == nil {
		cluster.list = make([]*model.Endpoint, 0, n)
	}
}

// place puts an endpoint into the sets that it belongs to now, and takes it out of the others. It reports whether a
// set, or an endpoint in a set, has changed.
func (e *endpoints) place(i int, ep *model.Endpoint, member [numSets]bool) bool {
	changed := false
	entry := &e.all[i]
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
			e.all[e.find(ep.Target)].slots[s] = to
		})
	}
}
