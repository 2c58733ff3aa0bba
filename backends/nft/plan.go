package nft

import (
	"cmp"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// plan is the difference between the current and the wanted table. Planning modifies nothing else. It becomes two
// transactions: the first sends traffic to the new objects, and leaves those that packets in flight may still reach;
// the second removes these.
type plan struct {
	base   *table // the current one
	config *config
	strays int // see table
	sets   [numSets]setPlan
	// The other fields are about objects that not every table has.
	newSets    []*dp.Set
	newChains  []rules.Chain // to make
	chains     []rules.Chain // to rewrite
	goneChains []string
	goneSets   []string

	rules   map[string][]dp.RuleID      // of the chains that were asked for
	names   map[actions]string          // of the shared chains made here
	own     map[model.PortName]*ownPort // that differ, nil for removed ones
	ids     map[uint32]bool             // of these
	clients map[string]bool             // sets that were asked for
}

// setPlan has the changes of a set. An element that is both deleted and added is replaced, or left alone if it is the
// same.
type setPlan struct {
	missing            bool // the set itself has to be made
	add, gone, replace []dp.Element
}

func newPlan(base *table, c *config) *plan {
	p := &plan{base: base, config: c, strays: base.strays, rules: map[string][]dp.RuleID{}, names: map[actions]string{},
		own: map[model.PortName]*ownPort{}, ids: map[uint32]bool{}, clients: map[string]bool{}}
	for id, elements := range base.leftovers.elements {
		p.sets[id].gone = slices.Clip(elements)
	}
	p.goneChains, p.goneSets = slices.Clip(base.leftovers.chains), slices.Clip(base.leftovers.sets)
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
	var gone []dp.Element
	for _, e := range sp.gone {
		if index[e.Key] != stays {
			gone = append(gone, e)
		}
	}
	sp.gone = gone
}

// portPlan is a service port before or after the plan.
type portPlan struct {
	*frontend.Port // nil: it does not exist
	own            *ownPort
}

// sharedSets returns the sets of which a frontend has its own slots.
func (p portPlan) sharedSets(fr *frontend.Frontend) model.EndpointSets {
	if fr == nil || p.own.hasNumbers() {
		return 0
	}
	return p.RoutesOf(fr.Kind).Sets()
}

// changePort plans the changes of a service port.
func (p *plan) changePort(c *frontend.PortChange) {
	before, after := portPlan{Port: c.Before}, portPlan{Port: c.After}
	if before.Port != nil {
		before.own = p.base.own[c.Before.Name]
	}
	after.own = p.ownOf(c, before.own)
	all := before.Port != nil && after.Port != nil && concernsAll(c, before, after)
	changed := map[frontend.Key]bool{}
	for fc := range c.FrontendChanges() {
		if all {
			changed[fc.Key()] = true
		}
		p.changeFrontend(c, before, fc.Before, after, fc.After)
	}
	if all {
		for fr := range c.Frontends() {
			if !changed[fr.Key] {
				p.changeFrontend(c, before, &fr, after, &fr)
			}
		}
	}
	p.changeOwn(c, before, after)
}

// concernsAll reports whether a change of a service port concerns frontends that do not change themselves.
func concernsAll(c *frontend.PortChange, before, after portPlan) bool {
	for _, kind := range []frontend.Kind{frontend.ClusterIP, frontend.ExternalIP, frontend.NodePort} {
		if before.actionsOf(kind) != after.actionsOf(kind) {
			return true
		}
	}
	if !slices.Equal(before.SourceRanges, after.SourceRanges) {
		return true
	}
	if before.own.hasNumbers() != after.own.hasNumbers() {
		return true
	}
	return !after.own.hasNumbers() &&
		(len(c.EndpointChanges(model.ClusterSet)) > 0 || len(c.EndpointChanges(model.LocalSet)) > 0)
}

// changeFrontend plans the changes of a frontend from o to n; either may be nil.
func (p *plan) changeFrontend(c *frontend.PortChange, before portPlan, o *frontend.Frontend, after portPlan,
	n *frontend.Frontend) {
	k := cmp.Or(o, n).Key
	key, nodePort := rules.Key(k.Addr, k.Protocol, k.Port), k.IsNodePort()
	verdicts, sources := &p.sets[serviceIPs], &p.sets[vipSources]
	if nodePort {
		verdicts = &p.sets[nodePorts]
	}
	var was, is dp.Element
	if o != nil {
		was = dp.Element{Key: key, Value: p.nameOf(before.actionsOf(o.Kind)), Comment: comment(before.Port)}
	}
	if n != nil {
		is = dp.Element{Key: key, Value: p.chainFor(after.actionsOf(n.Kind)), Comment: comment(after.Port)}
	}
	if o != nil && was != is {
		verdicts.gone = append(verdicts.gone, was)
	}
	if n != nil && was != is {
		verdicts.add = append(verdicts.add, is)
	}
	wasSets, isSets := before.sharedSets(o), after.sharedSets(n)
	for _, set := range frontend.RouteSets() {
		p.changeSlots(slotsOf(set, nodePort), key, c, set, wasSets.Has(set), isSets.Has(set))
	}
	if o != nil && o.Restricted {
		sources.gone = append(sources.gone, rules.SourceElements(key, before.SourceRanges)...)
	}
	if n != nil && n.Restricted {
		sources.add = append(sources.add, rules.SourceElements(key, after.SourceRanges)...)
	}
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

// changeOwn plans the own objects of a service port.
func (p *plan) changeOwn(c *frontend.PortChange, before, after portPlan) {
	own := cmp.Or(after.own, before.own)
	if own == nil {
		return
	}
	for i, set := range frontend.RouteSets() {
		was := before.own.hasNumbers() && before.Routes.Sets().Has(set)
		is := after.own.hasNumbers() && after.Routes.Sets().Has(set)
		p.changeSlots(portEndpoints, string(dp.AppendNumber(nil, own.ids[i])), c, set, was, is)
	}
	// Objects that are requested again are not removed, see transactions.
	if before.own != nil {
		p.goneChains = append(p.goneChains, before.own.chains...)
		if name := before.own.clients; name != "" {
			p.goneSets = append(p.goneSets, name)
		}
	}
	p.own[cmp.Or(c.After, c.Before).Name] = after.own
	if after.own == nil {
		return
	}
	if name := own.clients; name != "" && !p.clients[name] {
		p.clients[name] = true
		if !p.base.clients[name] {
			p.newSets = append(p.newSets, clientsSet(after.Port, own))
		}
	}
	for _, ch := range p.ownChains(c, after) {
		if p.ensure(ch) {
			own.chains = append(own.chains, ch.Name)
		}
	}
}

// nameOf returns the name of the chain for actions.
func (p *plan) nameOf(a actions) string {
	if name, ok := p.base.names[a]; ok {
		return name
	}
	return a.chainName()
}

// chainFor returns the name of the chain for actions, and plans the chain if it is missing.
func (p *plan) chainFor(a actions) string {
	if name, ok := p.base.names[a]; ok {
		return name
	}
	if name, ok := p.names[a]; ok {
		return name
	}
	name := a.chainName()
	if a.own() != "" {
		return name // changeOwn makes those
	}
	for _, ch := range p.config.chains(p.base.sets, a) {
		p.ensure(ch)
	}
	p.names[a] = name
	return name
}

// ensure plans a chain that is missing, or has other rules. It returns false if it has been asked for before.
func (p *plan) ensure(ch rules.Chain) bool {
	if _, done := p.rules[ch.Name]; done {
		return false
	}
	ids := dp.RuleIDs(ch.Rules, p.config.family)
	p.rules[ch.Name] = ids
	have, there := p.base.chains[ch.Name]
	switch {
	case !there:
		p.newChains = append(p.newChains, ch)
	case !slices.Equal(have, ids):
		p.chains = append(p.chains, ch)
	}
	return true
}

// changeAddrs plans which addresses are in a set.
func (p *plan) changeAddrs(id setID, c frontend.Diff[netip.Addr], element func(netip.Addr) dp.Element) {
	sp := &p.sets[id]
	sp.add = slices.Grow(sp.add, len(c.Added))
	for _, a := range c.Removed {
		sp.gone = append(sp.gone, element(a))
	}
	for _, a := range c.Added {
		sp.add = append(sp.add, element(a))
	}
}

// transactions returns the two transactions. Call it once.
func (p *plan) transactions(key dp.TableKey) (first, second *dp.Transaction) {
	first, second = dp.NewTransaction(key), dp.NewTransaction(key)
	for id := range p.sets {
		p.sets[id].settle()
	}
	p.goneChains = slices.DeleteFunc(p.goneChains, func(name string) bool { return p.rules[name] != nil })
	p.goneSets = slices.DeleteFunc(p.goneSets, func(name string) bool { return p.clients[name] })
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
