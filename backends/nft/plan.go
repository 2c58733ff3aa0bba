package nft

import (
	"slices"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
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
	lowered    []model.PortName // service ports whose clients may have a longer affinity timeout
	all        bool             // everything is planned as new, after the table was read
	wanted     map[string]bool  // the chains that were asked for
	wantedSets map[string]bool  // and the sets
	lists      rules.SourceLists
	ranges     []rangesPlan
	shown      map[model.PortName]*ownPort // of the table that is described, if this is for a description
	readRanges map[string][]dp.Element     // of the sets of source ranges that were read
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

// ensureOwn plans chains of a service port. If everything is planned, it reports whether the table already had one of
// their rules that give clients this affinity timeout.
func (p *plan) ensureOwn(own *ownPort, chains []rules.Chain) (kept bool) {
	had := map[dp.RuleID]bool{} // rules of those that differ
	for _, ch := range chains {
		ch.Comment = own.comment
		have := p.base.chains[ch.Name]
		p.ensure(ch, own)
		switch {
		case kept || !p.all || !own.isSticky():
		case slices.Equal(have, p.base.chains[ch.Name]):
			kept = slices.ContainsFunc(ch.Rules, givesTimeout)
		default:
			for _, id := range have {
				had[id] = true
			}
		}
	}
	for _, ch := range chains {
		for i, id := range p.base.chains[ch.Name] {
			kept = kept || had[id] && givesTimeout(ch.Rules[i])
		}
	}
	return kept
}

// ensureSet plans a set that not every table has, and reports whether it is missing.
func (p *plan) ensureSet(s *dp.Set) (missing bool) {
	p.wantedSets[s.Name] = true
	if p.base.extraSets[s.Name] {
		return false
	}
	p.base.extraSets[s.Name] = true
	p.newSets = append(p.newSets, s)
	return true
}

// transactions returns the two transactions. Call it once.
func (p *plan) transactions(key dp.TableKey) (first, second *dp.Transaction) {
	first, second = dp.NewTransaction(key), dp.NewTransaction(key)
	p.removeIdle()
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
