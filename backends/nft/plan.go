package nft

import (
	"slices"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// plan collects what is to change in a table, and divides it into two transactions. The first leads traffic over to what
// is new, and leaves in place what a packet that is under way may still be led to; the second removes that.
type plan struct {
	family *family
	sets   []*setPlan // for the sets of layout.all, in that order
	// The rest is about what is not always there.
	newSets    []*dp.Set
	newChains  []chain // to make
	chains     []chain // to rewrite
	goneChains []string
	goneSets   []string
	// wantedChains has the names of those that were looked at.
	wantedChains map[string]bool
}

// setPlan is what is to change in a set. An element that goes and comes with the same key is replaced, or left alone if it
// is the same.
type setPlan struct {
	set       *dp.Set
	add, gone []dp.Element
	replace   []dp.Element
}

func newPlan(f *family) *plan {
	p := &plan{family: f, wantedChains: map[string]bool{}}
	for _, s := range f.sets.all() {
		p.sets = append(p.sets, &setPlan{set: s})
	}
	return p
}

func (p *plan) of(s *dp.Set) *setPlan {
	for _, sp := range p.sets {
		if sp.set == s {
			return sp
		}
	}
	panic("nft: no plan for set " + s.Name) // only if layout.all forgets one
}

// settle finds the elements that go and come.
func (sp *setPlan) settle() {
	if len(sp.add) == 0 || len(sp.gone) == 0 {
		return
	}
	index := make(map[string]int, len(sp.gone))
	for i := range sp.gone {
		index[sp.gone[i].Key] = i
	}
	stays := make([]bool, len(sp.gone))
	added := sp.add[:0]
	for _, e := range sp.add {
		i, there := index[e.Key]
		if !there {
			added = append(added, e)
			continue
		}
		stays[i] = true
		if sp.gone[i] != e {
			sp.replace = append(sp.replace, e)
		}
	}
	sp.add = added
	kept := sp.gone[:0]
	for i, e := range sp.gone {
		if !stays[i] {
			kept = append(kept, e)
		}
	}
	sp.gone = kept
}

// changePort notes what differs between a port as it is in force and as it is to be; either may be nil.
func (p *plan) changePort(before, after *port) {
	var none port
	if before == nil {
		before = &none
	}
	if after == nil {
		after = &none
	}
	for i := range before.fronts {
		o := &before.fronts[i]
		p.changeFront(before, o, after, after.front(o.claimKey))
	}
	for i := range after.fronts {
		if n := &after.fronts[i]; before.front(n.claimKey) == nil {
			p.changeFront(before, nil, after, n)
		}
	}
	for _, a := range before.Hairpins {
		p.family.hairpins.remove(a)
	}
	for _, a := range after.Hairpins {
		p.family.hairpins.add(a)
	}
	if a := before.ClusterIP(); a.IsValid() {
		p.family.clusterIPs.remove(a)
	}
	if a := after.ClusterIP(); a.IsValid() {
		p.family.clusterIPs.add(a)
	}
	p.changeAffinity(before, after)
}

// front returns the front with a key, or nil.
func (p *port) front(k claimKey) *front {
	for i := range p.fronts {
		if fr := &p.fronts[i]; fr.claimKey == k {
			return fr
		}
	}
	return nil
}

func (p *plan) changeFront(before *port, o *front, after *port, n *front) {
	if o != nil && o.lost {
		o = nil
	}
	if n != nil && n.lost {
		n = nil
	}
	if o == nil && n == nil {
		return
	}
	key, nodePort := "", false
	var was, is dp.Element
	var wasSets, isSets model.EndpointSets
	if o != nil {
		key, nodePort = o.key, o.nodePort
		was = p.dispatchElement(before, o)
		wasSets = before.frontSets(o)
	}
	if n != nil {
		key, nodePort = n.key, n.nodePort
		is = p.dispatchElement(after, n)
		isSets = after.frontSets(n)
	}
	if was != is {
		sp := p.of(p.family.sets.dispatch(nodePort))
		if o != nil {
			sp.gone = append(sp.gone, was)
		}
		if n != nil {
			sp.add = append(sp.add, is)
		}
	}
	for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
		if (wasSets | isSets).Has(set) {
			p.changeSlots(key, nodePort, set, before, wasSets, after, isSets)
		}
	}
	p.changeSources(before, o, after, n)
}

func (p *plan) dispatchElement(of *port, fr *front) dp.Element {
	return dp.Element{Key: fr.key, Value: p.family.chainFor(p, of.dispatchOf(fr)), Comment: of.comment()}
}

// changeSlots compares slot by slot: the cost is that of comparing, and of what differs.
func (p *plan) changeSlots(key string, nodePort bool, set model.EndpointSets, before *port, wasSets model.EndpointSets, after *port, isSets model.EndpointSets) {
	sp := p.of(p.family.sets.slots(set, nodePort))
	element := func(of *port, i int) dp.Element { return slotElement(key, i, of.Endpoints(set)[i]) }
	was, is := 0, 0
	if wasSets.Has(set) {
		was = len(before.Endpoints(set))
	}
	if isSets.Has(set) {
		is = len(after.Endpoints(set))
	}
	for i := range max(was, is) {
		switch {
		case i >= was:
			sp.add = append(sp.add, element(after, i))
		case i >= is:
			sp.gone = append(sp.gone, element(before, i))
		case before.Endpoints(set)[i] != after.Endpoints(set)[i]:
			sp.gone = append(sp.gone, element(before, i))
			sp.add = append(sp.add, element(after, i))
		}
	}
}

// changeSources is about who may use a VIP.
func (p *plan) changeSources(before *port, o *front, after *port, n *front) {
	sp := p.of(p.family.sets.vipSources)
	if o != nil && o.Restricted {
		for _, r := range before.ranges {
			sp.gone = append(sp.gone, sourceElement(o.key, r))
		}
	}
	if n != nil && n.Restricted {
		for _, r := range after.ranges {
			sp.add = append(sp.add, sourceElement(n.key, r))
		}
	}
}

func (p *plan) changeAffinity(before, after *port) {
	if before.affinity == "" && after.affinity == "" {
		return
	}
	f := p.family
	var names []string
	for _, ch := range after.affinityChains(f.config, f.sets) {
		names = append(names, ch.Name)
		p.ensure(ch)
	}
	for _, ch := range before.affinityChains(f.config, f.sets) {
		if _, there := f.chains[ch.Name]; there && !slices.Contains(names, ch.Name) {
			delete(f.chains, ch.Name)
			p.goneChains = append(p.goneChains, ch.Name)
		}
	}
}

// ensure sees to it that a chain is there with its rules.
func (p *plan) ensure(ch chain) {
	f := p.family
	p.wantedChains[ch.Name] = true
	ids := ch.ids(f.key.Family)
	have, there := f.chains[ch.Name]
	switch {
	case !there:
		p.newChains = append(p.newChains, ch)
	case !slices.Equal(have, ids):
		p.chains = append(p.chains, ch)
	default:
		return
	}
	f.chains[ch.Name] = ids
}

// transactions returns the two transactions. Call it once.
func (p *plan) transactions() (first, second *dp.Transaction) {
	f := p.family
	first, second = dp.NewTransaction(f.key), dp.NewTransaction(f.key)
	for _, sp := range p.sets {
		sp.settle()
	}
	if f.replaceTable {
		first.DeleteTable()
	}
	if !f.there {
		first.AddTable(layoutComment)
	}
	for _, s := range p.newSets {
		first.AddSet(s)
	}
	for i := range p.newChains {
		first.AddChain(&p.newChains[i].Chain)
	}
	for _, ch := range p.chains {
		first.FlushChain(ch.Name)
	}
	for _, ch := range slices.Concat(p.newChains, p.chains) {
		for i := range ch.rules {
			first.AddRule(ch.Name, &ch.rules[i])
		}
	}
	for _, sp := range p.sets {
		switch sp.set {
		case f.sets.serviceIPs, f.sets.nodePorts, f.sets.clusterIPs, f.sets.nodePortIPs, f.sets.vipSources:
			first.DeleteElements(sp.set, sp.gone...)
		default:
			second.DeleteElements(sp.set, sp.gone...)
		}
	}
	// What is led to comes before what leads there, for when a transaction has to be divided.
	for _, sp := range slices.Backward(p.sets) {
		first.ReplaceElements(sp.set, sp.replace...)
		first.AddElements(sp.set, sp.add...)
	}
	for _, name := range p.goneChains {
		second.FlushChain(name)
	}
	for _, name := range p.goneSets {
		second.DeleteSet(name)
	}
	for _, name := range p.goneChains {
		second.DeleteChain(name)
	}
	return first, second
}
