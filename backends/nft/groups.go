package nft

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
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
	found   bool         // the table already had rules with this affinity timeout
}

func newEndpointGroups() *endpointGroups {
	return &endpointGroups{of: map[netip.AddrPort]int{}, changed: map[int]bool{}}
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
}

// isSparse reports whether the endpoints would fit into a quarter of the groups.
func (g *endpointGroups) isSparse() bool { return len(g.members) > maxGroups(len(g.of)) }

// maxGroups returns how many groups so many endpoints may have.
func maxGroups(endpoints int) int { return 4 * (1 + endpoints/maxOfGroup) }

// knownChain and newChain return the names of the chains of a group.
func knownChain(name string, group int) string { return fmt.Sprintf("%s-known-%d", name, group) }

func newChain(name string, group int) string { return fmt.Sprintf("%s-new-%d", name, group) }

// groupsOf returns the groups of a backend set with many endpoints: those of before with the changes, or else those
// that the table has. before are the port's own objects before, nil if there are none.
func (p *plan) groupsOf(c *frontend.PortChange, set model.EndpointSets, before, after *ownPort, clients *dp.Set,
) *endpointGroups {
	i := slices.Index(frontend.RouteSets(), set)
	g := newEndpointGroups()
	switch shown := p.shown[c.Name()]; {
	case c.Before != nil && before != nil && before.groups[i] != nil:
		g = before.groups[i]
		g.change(c.EndpointChanges(set))
		if before.affinity != after.affinity || before.name != after.name || before.masquerade[i] != after.masquerade[i] {
			for group := range g.members {
				g.changed[group] = true
			}
		}
	case p.all:
		p.findGroups(g, c, set, after, clients)
	case shown != nil && shown.groups[i] != nil:
		for group, members := range shown.groups[i].members {
			for _, ep := range members {
				if c.Sets(ep).Has(set) {
					g.addTo(group, ep)
				}
			}
		}
	}
	if g.isSparse() {
		found := g.found
		g = newEndpointGroups()
		g.found = found
	}
	if len(g.of) < len(c.Endpoints(set)) {
		for _, ep := range sortedTargets(c.Endpoints(set)) {
			g.add(ep)
		}
	}
	after.groups[i] = g
	return g
}

// findGroups adds the endpoints that the table has in groups.
func (p *plan) findGroups(g *endpointGroups, c *frontend.PortChange, set model.EndpointSets, o *ownPort,
	clients *dp.Set) {
	name, _ := o.chain(set)
	if len(p.base.chains[name]) == 0 {
		return
	}
	endpoints := sortedTargets(c.Endpoints(set))
	known, _ := clientsRules(c.After, endpoints, clients)
	byRule := make(map[dp.RuleID]netip.AddrPort, len(known))
	for i, id := range dp.RuleIDs(known, p.base.config.family) {
		byRule[id] = endpoints[i]
	}
	for _, id := range p.base.chains[name] { // which has all rules if the endpoints were not in groups
		g.found = g.found || byRule[id].IsValid()
	}
	for group := range maxGroups(len(endpoints)) {
		for n, id := range p.base.chains[knownChain(name, group)] {
			if ep := byRule[id]; ep.IsValid() && n < maxOfGroup {
				g.addTo(group, ep)
				g.found = true
			}
		}
	}
}

// ensureGroups plans the chains of groups, and returns the rules that jump to them.
func (p *plan) ensureGroups(port *frontend.Port, name string, g *endpointGroups, o *ownPort,
	clients *dp.Set) []dp.Rule {
	var toKnown, toNew []dp.Rule
	left := len(g.of)
	for i, members := range g.members {
		if len(members) == 0 {
			continue
		}
		knownName, newName := knownChain(name, i), newChain(name, i)
		if g.changed[i] {
			known, chosen := clientsRules(port, members, clients)
			for _, ch := range []rules.Chain{rules.NewChain(knownName, known...), rules.NewChain(newName, chosen...)} {
				ch.Comment = o.comment
				p.ensure(ch, o)
			}
		} else {
			p.keep(knownName, o)
			p.keep(newName, o)
		}
		toKnown = append(toKnown, rules.Rule(dp.Jump{Chain: knownName}))
		var draw []dp.Statement
		if len(members) < left {
			draw = append(draw, dp.Fraction{Numerator: uint32(len(members)), Denominator: uint32(left)})
		}
		toNew = append(toNew, rules.Rule(append(draw, dp.Jump{Chain: newName})...))
		left -= len(members)
	}
	clear(g.changed)
	return append(toKnown, toNew...)
}
