package nft

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// The rules that keep the clients of a service port with session affinity (S32) with their endpoints. The entries of
// clients of a removed endpoint are left to time out: the rules that look for them are gone.

// clientChains adds the chains with these rules for a backend set of a service port. Clients that do not fit into
// their set go to one of the chains in random. was is what the port had of its own, or has if it is described.
func (p *plan) clientChains(list []rules.Chain, o, was *ownPort, i int, s *slotsChange, random []string) []rules.Chain {
	name, m := o.chain(frontend.RouteSets()[i])
	var known, chosen []dp.Rule
	if len(s.after) > maxUngrouped {
		o.groups[i] = p.groupsOf(name, o, was, i, s)
		list, known, chosen = o.groupChains(list, name, o.groups[i])
	} else {
		known = o.knownRules(sortedTargets(s.after))
		if chosen = newRules(known); len(known) == 1 { // all clients have the same endpoint
			known = nil
		}
	}
	return append(list, rules.NewChain(name, slices.Concat(p.masquerading(m), known, chosen, fullRules(random))...))
}

// groupChains adds the chains of groups that have changed, and notes those that stay. It returns the rules that jump to
// the chains of all groups: those for known clients, and those that draw a group for others.
func (o *ownPort) groupChains(list []rules.Chain, name string, g *endpointGroups) (_ []rules.Chain,
	known, chosen []dp.Rule) {
	list = slices.Grow(list, 2*len(g.changed)+1)
	left := len(g.of)
	for group, members := range g.members {
		if len(members) == 0 {
			continue
		}
		knownName, newName := knownChain(name, group), newChain(name, group)
		if g.changed[group] {
			ofGroup := o.knownRules(members)
			list = append(list, rules.NewChain(knownName, ofGroup...), rules.NewChain(newName, newRules(ofGroup)...))
		} else {
			o.chains = append(o.chains, knownName, newName)
		}
		known = append(known, rules.Rule(dp.Jump{Chain: knownName}))
		var draw []dp.Statement
		if len(members) < left {
			draw = append(draw, dp.Fraction{Numerator: uint32(len(members)), Denominator: uint32(left)})
		}
		chosen = append(chosen, rules.Rule(append(draw, dp.Jump{Chain: newName})...))
		left -= len(members)
	}
	clear(g.changed)
	return list, known, chosen
}

// groupsOf returns the groups of a backend set with many endpoints: those of was with the changes, or new ones, in
// which endpoints are as in the table if that was read or is described.
func (p *plan) groupsOf(name string, o, was *ownPort, i int, s *slotsChange) *endpointGroups {
	switch {
	case p.all:
		endpoints := sortedTargets(s.after)
		return newEndpointGroups(endpoints, p.groupsInTable(name, endpoints, o))
	case was == nil || was.groups[i] == nil:
		return newEndpointGroups(sortedTargets(s.after), nil)
	case p.shown != nil:
		return newEndpointGroups(sortedTargets(s.after), was.groups[i].members)
	}
	g := was.groups[i]
	g.change(s.changes)
	if was.affinity != o.affinity || was.masquerade[i] != o.masquerade[i] {
		for group := range g.members {
			g.changed[group] = true
		}
	}
	return g
}

// groupsInTable returns which endpoints the table has in which group.
func (p *plan) groupsInTable(name string, endpoints []netip.AddrPort, o *ownPort) [][]netip.AddrPort {
	if len(p.base.chains[name]) == 0 {
		return nil
	}
	known := o.knownRules(endpoints)
	byRule := make(map[dp.RuleID]netip.AddrPort, len(known))
	for i, id := range dp.RuleIDs(known, p.base.config.family) {
		byRule[id] = endpoints[i]
	}
	members := make([][]netip.AddrPort, maxGroups(len(endpoints)))
	for group := range members {
		ids := p.base.chains[knownChain(name, group)]
		for _, id := range ids[:min(len(ids), maxOfGroup)] {
			if ep := byRule[id]; ep.IsValid() {
				members[group] = append(members[group], ep)
			}
		}
	}
	return members
}

// sortedTargets returns the targets of endpoints in an order that is the same after a restart.
func sortedTargets(list []*model.Endpoint) []netip.AddrPort {
	targets := make([]netip.AddrPort, len(list))
	for i, ep := range list {
		targets[i] = ep.Target
	}
	slices.SortFunc(targets, model.CompareTargets)
	return targets
}

// knownRules returns rules that keep clients with one of these endpoints.
func (o *ownPort) knownRules(endpoints []netip.AddrPort) []dp.Rule {
	list := make([]dp.Rule, len(endpoints))
	for i, ep := range endpoints {
		// It has to be the same after a restart.
		sum := sha256.Sum256(dp.AppendPort(dp.AppendAddr(nil, ep.Addr()), ep.Port()))
		id := max(binary.BigEndian.Uint32(sum[:]), 1)
		list[i].Statements = []dp.Statement{dp.InSet{Set: o.clients, ID: id, Scope: o.scope},
			dp.Refresh{Set: o.clients, ID: id, Scope: o.scope, Timeout: o.affinity},
			dp.IsProtocol{Protocol: o.protocol}, dp.DNAT{To: ep}}
	}
	return list
}

// newRules returns rules that choose one of the endpoints of known rules for other clients. There may be very many, so
// they share the statements that they have in common.
func newRules(known []dp.Rule) []dp.Rule {
	list := make([]dp.Rule, len(known))
	for i := range known {
		list[i].Statements = known[i].Statements[1:]
		if left := len(known) - i; left > 1 {
			list[i].Statements = append([]dp.Statement{dp.OneIn{N: uint32(left)}}, list[i].Statements...)
		}
	}
	return list
}

// fullRules returns rules that send a client to one of the chains in random.
func fullRules(random []string) (list []dp.Rule) {
	const full = "if the set is full"
	last := len(random) - 1
	for _, name := range random[:last] { // a chain in which the packet finds no slot returns
		list = append(list, rules.Commented(full, dp.Jump{Chain: name}))
	}
	return append(list, rules.Commented(full, dp.Goto{Chain: random[last]}))
}
