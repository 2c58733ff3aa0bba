package nft

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// plan is the difference between the current and the wanted table. It becomes two transactions: the first sends traffic
// to the new objects, and leaves those that packets in flight may still reach; the second removes these.
//
// Planning updates what is known about chains, service ports and the configuration at once. If the first transaction
// fails, none of that is true, and the table has to be read.
type plan struct {
	base *table
	sets [numSets]setPlan
	// The other fields are about objects that not every table has.
	newSets    []*dp.Set
	newChains  []rules.Chain // to make
	chains     []rules.Chain // to rewrite
	goneChains []string
	goneSets   []string
	goneIDs    []uint32
	wanted     map[string]bool // the chains that were asked for
	wantedSets map[string]bool // and the sets
	lists      rules.SourceLists
	ranges     []rangesPlan
	readRanges map[string][]dp.Element // of the sets of source ranges that were read
}

// setPlan has the changes of a set. An element that is both deleted and added is replaced, or left alone if it is the
// same.
type setPlan struct {
	missing            bool // the set itself has to be made
	add, gone, replace []dp.Element
}

func newPlan(base *table) *plan {
	p := &plan{base: base, wanted: map[string]bool{}, wantedSets: map[string]bool{}, lists: rules.SourceLists{},
		goneChains: base.leftovers.chains, goneSets: base.leftovers.sets}
	for id, elements := range base.leftovers.elements {
		p.sets[id].gone = elements
	}
	return p
}

// settle finds the elements that are both deleted and added: those that differ are replaced, the others left alone.
func (sp *setPlan) settle() {
	if len(sp.add) == 0 || len(sp.gone) == 0 {
		return
	}
	index := make(map[string]int, len(sp.gone))
	for i := range sp.gone {
		index[sp.gone[i].Key] = i
	}
	const stays = -1
	sp.add = slices.DeleteFunc(sp.add, func(e dp.Element) bool {
		i, there := index[e.Key]
		if !there {
			return false
		}
		if i != stays && sp.gone[i] != e {
			sp.replace = append(sp.replace, e)
		}
		index[e.Key] = stays
		return true
	})
	sp.gone = slices.DeleteFunc(sp.gone, func(e dp.Element) bool { return index[e.Key] == stays })
}

// side is a service port before or after the plan, with what its frontends of each kind have in common.
type side struct {
	*frontend.Port // nil: it does not exist
	own            *ownPort
	sources        rules.SourcesID
	kinds          [numKinds]kindPlan
}

const numKinds = frontend.NodePort + 1

// kindPlan is what frontends of one kind have in common. It is zero if there are none.
type kindPlan struct {
	chain string             // where their traffic goes
	slots model.EndpointSets // the sets of which each has its own slots
}

// setKinds fills in kinds. chainFor returns the chain for what happens to traffic.
func (s *side) setKinds(chainFor func(frontend.Kind, actions) string) {
	for kind := range numKinds {
		if s.Port != nil && s.Count(kind) > 0 {
			s.kinds[kind].chain = chainFor(kind, s.actionsOf(kind))
			if !s.own.hasNumbers() {
				s.kinds[kind].slots = s.RoutesOf(kind).Sets()
			}
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
	after.own, after.sources = p.changeOwn(c, before.own), p.sourcesOf(c, before.sources)
	after.setKinds(func(kind frontend.Kind, a actions) string {
		name := p.chainFor(a)
		if after.own != nil {
			after.own.to[kind] = name
		}
		return name
	})
	p.changeSources(c, &before, &after)
	all := concernsAll(c, &before, &after)
	changed := map[frontend.Key]bool{}
	for fc := range c.FrontendChanges() {
		if all {
			changed[fc.Key()] = true
		}
		p.changeFrontend(c, &before, &after, fc)
	}
	if all {
		for fr := range c.Frontends() {
			if !changed[fr.Key] {
				p.changeFrontend(c, &before, &after, frontend.FrontendChange{Before: &fr, After: &fr})
			}
		}
	}
}

// concernsAll reports whether a change of a service port concerns frontends that do not change themselves.
func concernsAll(c *frontend.PortChange, before, after *side) bool {
	if c.Before == nil || c.After == nil {
		return false
	}
	for kind := range numKinds {
		if was, is := before.kinds[kind], after.kinds[kind]; was != is && was.chain != "" && is.chain != "" {
			return true
		}
	}
	return !after.own.hasNumbers() &&
		(len(c.EndpointChanges(model.ClusterSet)) > 0 || len(c.EndpointChanges(model.LocalSet)) > 0)
}

// changeFrontend plans the changes of a frontend.
func (p *plan) changeFrontend(c *frontend.PortChange, before, after *side, fc frontend.FrontendChange) {
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
		verdicts.add = append(verdicts.add, dp.Element{Key: key, Value: is.chain, Comment: comment(after.Port)})
	}
	for _, set := range frontend.RouteSets() {
		p.changeSlots(slotsOf(set, nodePort), key, c, set, was.slots.Has(set), is.slots.Has(set))
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

// changeSlots plans the slots of a backend set under a key, which may be added, changed or removed.
func (p *plan) changeSlots(id setID, key string, c *frontend.PortChange, set model.EndpointSets, was, is bool) {
	sp := &p.sets[id]
	switch {
	case was && is:
		for _, ec := range c.EndpointChanges(set) {
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
		for i := range c.Before.Size(set) {
			sp.gone = append(sp.gone, dp.Element{Key: string(dp.AppendNumber([]byte(key), uint32(i)))})
		}
	case is:
		for i, ep := range c.Endpoints(set) {
			sp.add = append(sp.add, slotElement(key, i, ep.Target))
		}
	}
}

// ensure plans a chain that is missing, or has other rules. own is the service port that it belongs to, if any.
func (p *plan) ensure(ch rules.Chain, own *ownPort) {
	if p.wanted[ch.Name] {
		return
	}
	p.wanted[ch.Name] = true
	have, there := p.base.chains[ch.Name]
	ids := dp.RuleIDs(ch.Rules, p.base.config.family)
	p.base.chains[ch.Name] = ids
	switch {
	case !there:
		p.newChains = append(p.newChains, ch)
	case !slices.Equal(have, ids):
		p.chains = append(p.chains, ch)
	}
	if own != nil {
		own.chains = append(own.chains, ch.Name)
	}
}

// changeAddrs plans which addresses are in a set, by their keys.
func (p *plan) changeAddrs(id setID, c frontend.Diff[netip.Addr], key func(netip.Addr) string) {
	sp := &p.sets[id]
	sp.add = slices.Grow(sp.add, len(c.Added))
	for _, a := range c.Removed {
		sp.gone = append(sp.gone, dp.Element{Key: key(a)})
	}
	for _, a := range c.Added {
		sp.add = append(sp.add, dp.Element{Key: key(a)})
	}
}

// transactions returns the two transactions. Call it once.
func (p *plan) transactions(key dp.TableKey) (first, second *dp.Transaction) {
	first, second = dp.NewTransaction(key), dp.NewTransaction(key)
	for id := range p.sets {
		p.sets[id].settle()
	}
	p.goneChains = slices.DeleteFunc(p.goneChains, func(name string) bool { return p.wanted[name] })
	p.goneSets = slices.DeleteFunc(p.goneSets, func(name string) bool { return p.wantedSets[name] })
	if p.base.replace {
		first.DeleteTable()
	}
	if !p.base.there {
		first.AddTable(layoutComment)
	}
	for id, s := range p.base.sets {
		if sp := &p.sets[id]; sp.missing {
			if setID(id).hasSlots() {
				s.Size = sizeFor(len(sp.add))
			}
			first.AddSet(s)
		}
	}
	for _, s := range p.newSets {
		first.AddSet(s)
	}
	rules.SetChains(first, p.newChains, p.chains)
	for _, r := range p.ranges {
		first.DeleteElements(r.set, r.gone...)
		first.AddElements(r.set, r.add...)
	}
	for id, s := range p.base.sets {
		if sp := &p.sets[id]; setID(id).isLookedUpFirst() {
			first.DeleteElements(s, sp.gone...)
			sp.gone = nil
		} else {
			second.DeleteElements(s, sp.gone...)
		}
	}
	// Maps that are looked up later come first, in case a transaction has to be split.
	for id, s := range slices.Backward(p.base.sets[:]) {
		first.ReplaceElements(s, p.sets[id].replace...)
		first.AddElements(s, p.sets[id].add...)
	}
	rules.DeleteChains(second, p.goneChains, p.goneSets)
	return first, second
}
