package nft

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
)

// rangesPlan has the changes of a set of source ranges. Such a set is filled when it is made, and changed only to
// correct it.
type rangesPlan struct {
	set       *dp.Set
	gone, add []dp.Element
}

// sourcesOf returns which sources may use the restricted frontends of a service port, "" if it has none.
func (p *plan) sourcesOf(c *frontend.PortChange, before rules.SourcesID) rules.SourcesID {
	switch {
	case c.After == nil || c.After.Count(frontend.LoadBalancerIP) == 0 || !c.After.Restricts(frontend.LoadBalancerIP):
		return ""
	case before != "" && slices.Equal(c.Before.SourceRanges, c.After.SourceRanges):
		return before
	}
	return p.lists.Of(c.After.SourceRanges).ID
}

// changeSources plans the chain and the set of a service port's list of source ranges, unless another port has the same
// list, and counts the ports that use it and the restricted chain.
func (p *plan) changeSources(c *frontend.PortChange, before, after *side) {
	t, was, is := p.base, before.kinds[frontend.LoadBalancerIP].chain, after.kinds[frontend.LoadBalancerIP].chain
	if before.sources == after.sources && was == is {
		return
	}
	if id := after.sources; id != "" {
		t.sources[c.Name()] = id
		t.uses.Add(is)
		if t.uses.Add(id.Chain()) {
			p.addSources(p.lists.Of(c.After.SourceRanges))
		}
	} else {
		delete(t.sources, c.Name())
	}
	if id := before.sources; id != "" {
		for _, chain := range []string{was, id.Chain()} {
			if t.uses.Remove(chain) {
				p.goneChains = append(p.goneChains, chain) // unless it is requested again, see transactions
			}
		}
		if t.uses[id.Chain()] == 0 && t.extraSets[id.Set()] {
			p.goneSets = append(p.goneSets, id.Set())
		}
		if t.uses[was] == 0 {
			delete(t.names, before.actionsOf(frontend.LoadBalancerIP))
		}
	}
}

// addSources plans the chain and the set of a list of source ranges. A set that was not read is as this process made
// it.
func (p *plan) addSources(s *rules.Sources) {
	ch, set, ranges := s.Chain()
	p.ensure(ch, nil)
	if set == nil {
		return
	}
	have, read := p.readRanges[set.Name]
	if !p.ensureSet(set) && (!read || slices.Equal(have, ranges)) {
		return
	}
	p.ranges = append(p.ranges, rangesPlan{set, have, ranges})
}
