package nft

import (
	"cmp"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// side is a service port before or after the plan, with what its frontends of each kind have in common.
type side struct {
	*frontend.Port // nil: it does not exist
	own            *ownPort
	sources        rules.SourcesID
	kinds          [numKinds]kindPlan
	numbered       model.EndpointSets // the sets that have slots by number
}

const numKinds = frontend.NodePort + 1

// kindPlan is what frontends of one kind have in common. It is zero if there are none.
type kindPlan struct {
	chain string             // where their traffic goes
	slots model.EndpointSets // the sets of which each has its own slots
}

// setKinds fills in kinds and numbered. chainFor returns the chain for what happens to traffic.
func (s *side) setKinds(chainFor func(frontend.Kind, actions) string) {
	if s.Port == nil {
		return
	}
	if s.own.hasNumbers() {
		s.numbered = s.Routes.Sets()
	}
	for kind := range numKinds {
		if s.Count(kind) > 0 {
			s.kinds[kind] = kindPlan{chainFor(kind, s.actionsOf(kind)), s.RoutesOf(kind).Sets() &^ s.numbered}
		}
	}
}

// changePort plans the changes of a service port.
func (p *plan) changePort(c *frontend.PortChange) {
	before, after := side{Port: c.Before}, side{Port: c.After}
	before.own, before.sources = p.base.own[c.Name()], p.base.sources[c.Name()]
	before.setKinds(func(kind frontend.Kind, a actions) string {
		if before.own != nil {
			return before.own.to[kind]
		}
		return p.base.names[a]
	})
	var sets [2]slotsChange
	for i, set := range frontend.RouteSets() {
		s := &sets[i]
		if s.after = c.Endpoints(set); c.Before != nil {
			s.before = c.Before.Size(set)
		}
		if c.Before != nil && c.After != nil {
			s.changes = c.EndpointChanges(set)
		}
	}
	after.own, after.sources = p.changeOwn(c, &sets, before.own), p.sourcesOf(c, before.sources)
	after.setKinds(func(kind frontend.Kind, a actions) string {
		name := p.chainFor(a)
		if after.own != nil {
			after.own.to[kind] = name
		}
		return name
	})
	p.changeSources(c, &before, &after)
	p.base.countMixed(&before, &after)
	p.changeFrontends(c, &sets, &before, &after)
}

// slotsChange is a backend set of a service port before and after the plan. Sets are in the order of
// frontend.RouteSets.
type slotsChange struct {
	before  int // slots
	after   []*model.Endpoint
	changes []frontend.EndpointChange // if the port was there and stays
}

// changeFrontends plans where the frontends of a service port go, and the slots of its backend sets.
func (p *plan) changeFrontends(c *frontend.PortChange, sets *[2]slotsChange, before, after *side) {
	all := false // also concerns frontends that have not changed
	for kind := range numKinds {
		was, is := before.kinds[kind], after.kinds[kind]
		all = all || was != is && was.chain != "" && is.chain != ""
	}
	for i := range sets {
		all = all || len(sets[i].changes) > 0 && after.numbered == 0
	}
	changed := map[frontend.Key]bool{}
	for fc := range c.FrontendChanges() {
		if all {
			changed[fc.Key()] = true
		}
		p.changeFrontend(sets, before, after, fc)
	}
	if all {
		for fr := range c.Frontends() {
			if !changed[fr.Key] {
				p.changeFrontend(sets, before, after, frontend.FrontendChange{Before: &fr, After: &fr})
			}
		}
	}
	if own := cmp.Or(after.own, before.own); own != nil {
		for i, set := range frontend.RouteSets() {
			key := string(dp.AppendNumber(nil, own.ids[i]))
			p.changeSlots(portEndpoints, key, &sets[i], before.numbered.Has(set), after.numbered.Has(set))
		}
	}
}

// changeFrontend plans the changes of a frontend.
func (p *plan) changeFrontend(sets *[2]slotsChange, before, after *side, fc frontend.FrontendChange) {
	o, n, k := fc.Before, fc.After, fc.Key()
	key, nodePort := rules.Key(k.Addr, k.Protocol, k.Port), k.IsNodePort()
	verdicts := &p.sets[serviceIPs]
	if nodePort {
		verdicts = &p.sets[nodePorts]
	}
	var was, is kindPlan
	if o != nil {
		was = before.kinds[o.Kind]
	}
	if n != nil {
		is = after.kinds[n.Kind]
	}
	if o != nil && was.chain != is.chain {
		verdicts.gone = append(verdicts.gone, dp.Element{Key: key, Value: was.chain})
	}
	if n != nil && was.chain != is.chain {
		comment := dp.Comment(after.Name.String())
		verdicts.add = append(verdicts.add, dp.Element{Key: key, Value: is.chain, Comment: comment})
	}
	for i, set := range frontend.RouteSets() {
		p.changeSlots(slotsOf(set, nodePort), key, &sets[i], was.slots.Has(set), is.slots.Has(set))
	}
}

// changeSlots plans the slots of a backend set under a key, which may be added, changed or removed.
func (p *plan) changeSlots(id setID, key string, s *slotsChange, was, is bool) {
	sp := &p.sets[id]
	switch {
	case was && is:
		for _, ec := range s.changes {
			if ec.Before != nil && ec.After != nil && ec.Before.Target == ec.After.Target {
				continue
			}
			if ec.Before != nil {
				sp.gone = append(sp.gone, slotElement(key, ec.Slot, ec.Before.Target))
			}
			if ec.After != nil {
				sp.add = append(sp.add, slotElement(key, ec.Slot, ec.After.Target))
			}
		}
	case was:
		for i := range s.before {
			sp.gone = append(sp.gone, dp.Element{Key: string(dp.AppendNumber([]byte(key), uint32(i)))})
		}
	case is:
		for i, ep := range s.after {
			sp.add = append(sp.add, slotElement(key, i, ep.Target))
		}
	}
}

// slotElement returns the element for a slot of a frontend, or of a backend set that has a number.
func slotElement(key string, slot int, to netip.AddrPort) dp.Element {
	var b [64]byte
	k := append(b[:0], key...)
	k = dp.AppendNumber(k, uint32(slot))
	n := len(k)
	k = dp.AppendPort(dp.AppendAddr(k, to.Addr()), to.Port())
	s := string(k) // one allocation for both
	return dp.Element{Key: s[:n], Value: s[n:]}
}
