package nft

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// compare reads the table and corrects what is not as the snapshot says. What is right stays, whoever made it: that is how
// a new process takes over, and how the damage of others is repaired.
func (f *family) compare(ctx context.Context, s *sink.Snapshot) error {
	f.inForce, f.state = nil, newState(s.NumServices())
	table, err := f.dataplane.ReadTable(ctx, f.key, nil)
	if err != nil {
		return err
	}
	if table != nil && !compatible(table) {
		klog.FromContext(ctx).Info("Replacing a table of another layout", "table", f.key, "comment", table.Comment)
		f.replaceTable, table = true, nil
	}
	if f.there = table != nil; !f.there {
		table = &dp.Table{}
	}
	f.config = newConfig(f.key.Family, f.options, s.Node())

	var changes []change
	var keys []claimKey
	for e := range s.Services() {
		changes, keys = f.changeService(ctx, sink.Change{Name: e.Service.Name, New: e}, changes, keys)
	}
	changes = f.resolve(ctx, changes, keys)
	found := f.adoptSlots(table, changes)
	need := f.chooseSets(found, changes)
	for _, set := range f.sets.all() {
		if have := table.Sets[set.Name]; have != nil && have.Size != set.Size {
			// Somebody has died between two transactions: a map that is too small has the name of the bigger one to come.
			f.there, f.replaceTable, table = false, true, &dp.Table{}
			break
		}
	}
	p := newPlan(f)
	for _, sp := range p.sets {
		sp.add = make([]dp.Element, 0, need[sp.set])
	}
	f.adopt(p, table)
	for _, ch := range f.config.baseChains(f.sets) {
		p.ensure(ch)
	}
	for _, c := range changes {
		p.changePort(nil, c.after)
	}
	sp := p.of(f.sets.nodePortIPs)
	for _, a := range f.config.nodePortIPs {
		sp.add = append(sp.add, addrElement(a))
	}
	p.goneChains = sortedNames(f.chains, p.wantedChains)
	for _, name := range p.goneChains {
		delete(f.chains, name)
	}
	wantedSets := map[string]bool{}
	for _, s := range f.sets.all() {
		wantedSets[s.Name] = true
	}
	p.goneSets = sortedNames(table.Sets, wantedSets)
	if err := f.apply(ctx, p); err != nil {
		return err
	}
	f.inForce, f.grow = s, false
	return nil
}

// compatible tells whether a table can be corrected piece by piece.
func compatible(t *dp.Table) bool {
	if t.Comment != layoutComment {
		return false
	}
	for _, ch := range (&config{}).baseChains(newSets()) {
		if have := t.Chains[ch.Name]; have != nil && (have.Hook != ch.Hook || have.Priority != ch.Priority || have.Filter != ch.Filter) {
			return false
		}
	}
	for _, s := range newSets().all() {
		for _, name := range []string{s.Name, otherName(s.Name)} {
			if have := t.Sets[name]; have != nil {
				want := *s
				if hasSlots(s) {
					want.Size = have.Size
				}
				if !have.Matches(&want) {
					return false
				}
			}
		}
	}
	return true
}

// otherName returns the second of the two names that a map with a size may have. A bigger one has the other name, so that
// packets under way still find theirs.
func otherName(name string) string {
	if before, ok := strings.CutSuffix(name, "-2"); ok {
		return before
	}
	return name + "-2"
}

// adoptSlots gives endpoints the slots that they have in the table. It returns the maps with slots that it found, by the
// names of newSets.
func (f *family) adoptSlots(t *dp.Table, changes []change) map[string]*dp.TableSet {
	found := map[string]*dp.TableSet{}
	slots := map[string]map[string]string{}
	want := newSets()
	for _, s := range want.all() {
		if !hasSlots(s) {
			continue
		}
		have := t.Sets[s.Name]
		if o := t.Sets[otherName(s.Name)]; o != nil && (have == nil || o.Size > have.Size) {
			have = o
		}
		if have == nil {
			continue
		}
		found[s.Name] = have
		if len(have.Elements) > 0 {
			m := make(map[string]string, len(have.Elements))
			for _, e := range have.Elements {
				m[e.Key] = e.Value
			}
			slots[s.Name] = m
		}
	}
	if len(slots) == 0 {
		return found
	}
	for _, c := range changes {
		for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
			for i := range c.after.fronts {
				fr := &c.after.fronts[i]
				if !c.after.frontSets(fr).Has(set) {
					continue
				}
				if m := slots[want.slots(set, fr.nodePort).Name]; m != nil {
					adopted := readSlots(f.key.Family, m, fr.key)
					if set == model.ClusterSet {
						c.after.Cluster = assignSlots(adopted, c.after.Cluster)
					} else {
						c.after.Local = assignSlots(adopted, c.after.Local)
					}
				}
				break
			}
		}
	}
	return found
}

func readSlots(family model.Family, m map[string]string, key string) (slots []netip.AddrPort) {
	b := append(make([]byte, 0, 64), key...)
	for i := uint32(0); ; i++ {
		v, ok := m[string(binary.NativeEndian.AppendUint32(b, i))]
		if !ok {
			return slots
		}
		n := 4
		if family == model.IPv6 {
			n = 16
		}
		a, _ := netip.AddrFromSlice([]byte(v[:n]))
		slots = append(slots, netip.AddrPortFrom(a, uint16(v[n])<<8|uint16(v[n+1])))
	}
}

// chooseSets takes the maps that are there if they are big enough, and otherwise bigger ones.
// It returns how many elements each is to have.
func (f *family) chooseSets(found map[string]*dp.TableSet, changes []change) (need map[*dp.Set]int) {
	f.sets = newSets()
	need = map[*dp.Set]int{}
	for _, c := range changes {
		for i := range c.after.fronts {
			fr := &c.after.fronts[i]
			need[f.sets.dispatch(fr.nodePort)]++
			for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
				if c.after.frontSets(fr).Has(set) {
					need[f.sets.slots(set, fr.nodePort)] += len(c.after.Endpoints(set))
				}
			}
		}
	}
	for _, s := range f.sets.all() {
		if !hasSlots(s) {
			continue
		}
		have := found[s.Name]
		switch {
		case have == nil:
			s.Size = sizeFor(need[s])
		case len(have.Elements)+need[s] <= int(have.Size), !f.grow && need[s] <= int(have.Size):
			s.Name, s.Size = have.Name, have.Size // with room even if no element can stay, or else if enough can
		default:
			s.Name, s.Size = otherName(have.Name), sizeFor(need[s])
		}
	}
	return need
}

// adopt takes over what is in the table: sets with their elements, which go unless they come again, and chains.
func (f *family) adopt(p *plan, t *dp.Table) {
	for _, sp := range p.sets {
		if have := t.Sets[sp.set.Name]; have != nil {
			sp.gone = have.Elements
			f.slots[sp.set] = len(have.Elements)
		} else {
			p.newSets = append(p.newSets, sp.set)
		}
	}
	for name, ch := range t.Chains {
		f.chains[name] = slices.Clone(ch.Rules)
	}
}
