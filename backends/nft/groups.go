package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A chain is rewritten as a whole. So if a service port with session affinity has many endpoints, these are in groups,
// and a change of one rewrites the two chains of its group: one looks for clients that are known, the other chooses an
// endpoint for a client that is not. The chain of the port jumps to the first chain of every group, and then to the
// second one of a group that it draws, by their numbers of endpoints. The package documentation shows it.
//
// Endpoints stay in their groups. A new one takes the place of one that is gone, so that a replaced endpoint changes
// one group and nothing else. After a restart the chains in the table tell which endpoints are in which group.
const (
	maxUngrouped = 256 // endpoints of a backend set whose rules are in one chain
	maxOfGroup   = 128
)

// endpointGroups are the endpoints of a backend set.
type endpointGroups struct {
	members [][]netip.AddrPort // by group; a group may be empty
	of      map[netip.AddrPort]int
	changed map[int]bool // groups whose chains may differ from their members
	room    int          // no group before this one has room
}

// newEndpointGroups returns groups of endpoints, which are sorted. Those in members stay in their groups, unless there
// are too many of these.
func newEndpointGroups(endpoints []netip.AddrPort, members [][]netip.AddrPort) *endpointGroups {
	g := &endpointGroups{of: make(map[netip.AddrPort]int, len(endpoints)), changed: map[int]bool{}}
	for group, list := range members {
		for _, ep := range list {
			if _, wanted := slices.BinarySearchFunc(endpoints, ep, model.CompareTargets); wanted {
				g.addTo(group, ep)
			}
		}
	}
	if g.isSparse() {
		return newEndpointGroups(endpoints, nil)
	}
	if len(g.of) < len(endpoints) {
		for _, ep := range endpoints {
			g.add(ep)
		}
	}
	return g
}

// add adds an endpoint to the first group that has room, unless it is in one.
func (g *endpointGroups) add(ep netip.AddrPort) {
	for g.room < len(g.members) && len(g.members[g.room]) >= maxOfGroup {
		g.room++
	}
	g.addTo(g.room, ep)
}

// addTo adds an endpoint to a group that has room, unless it is in one.
func (g *endpointGroups) addTo(group int, ep netip.AddrPort) {
	if _, there := g.of[ep]; there {
		return
	}
	for group >= len(g.members) {
		g.members = append(g.members, nil)
	}
	g.members[group] = append(g.members[group], ep)
	g.of[ep] = group
	g.changed[group] = true
}

func (g *endpointGroups) remove(ep netip.AddrPort) {
	group, there := g.of[ep]
	if !there {
		return
	}
	g.members[group] = slices.DeleteFunc(g.members[group], func(other netip.AddrPort) bool { return other == ep })
	delete(g.of, ep)
	g.changed[group] = true
	g.room = min(g.room, group)
}

// change applies changes of slots. An endpoint that moves to another slot stays in its group.
func (g *endpointGroups) change(changes []frontend.EndpointChange) {
	wanted := map[netip.AddrPort]bool{}
	for _, c := range changes {
		if c.After != nil {
			wanted[c.After.Target] = true
		}
	}
	for _, c := range changes {
		if c.Before != nil && !wanted[c.Before.Target] {
			g.remove(c.Before.Target)
		}
	}
	for _, c := range changes {
		if c.After != nil {
			g.add(c.After.Target)
		}
	}
	if g.isSparse() {
		*g = *newEndpointGroups(slices.SortedFunc(maps.Keys(g.of), model.CompareTargets), nil)
	}
}

// isSparse reports whether the endpoints would fit into a quarter of the groups.
func (g *endpointGroups) isSparse() bool { return len(g.members) > maxGroups(len(g.of)) }

// maxGroups returns how many groups so many endpoints may have.
func maxGroups(endpoints int) int { return 4 * (1 + endpoints/maxOfGroup) }

// knownChain and newChain return the names of the chains of a group.
func knownChain(name string, group int) string { return fmt.Sprintf("%s-known-%d", name, group) }

func newChain(name string, group int) string { return fmt.Sprintf("%s-new-%d", name, group) }
