package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// compareAgain repeats the comparison until no other program changes the table meanwhile.
func (f *family) compareAgain(ctx context.Context, cfg *config, c *frontend.Changes) (changed bool, err error) {
	err = rules.Retry(func() (err error) {
		changed, err = f.compare(ctx, cfg, c)
		return err
	})
	return changed, err
}

// compare reads the table and corrects the differences. What is right stays, whoever made it: this is how a new process
// takes over, and how changes by others are repaired. It reports whether anything was changed.
//
// If nothing is known about the table, the slots are not read. They are written into new maps with other names, and the
// chains that use them are rewritten: packets in flight still find the old maps.
func (f *family) compare(ctx context.Context, cfg *config, c *frontend.Changes) (changed bool, err error) {
	before := f.table
	if f.state == unknown {
		before = nil
	}
	read, err := f.dataplane.ReadTable(ctx, f.key, func(s *dp.TableSet) bool { return before != nil || s.Size == 0 })
	if err != nil {
		return false, err
	}
	base := newTable()
	if read != nil && !compatible(read) {
		klog.FromContext(ctx).Info("Replacing a table of another layout", "table", f.key, "comment", read.Comment,
			"reason", "another version of this library wrote it, or another program changed it")
		base.replace, read = true, nil
	}
	there := read != nil
	if base.there = there; !there {
		read = &dp.Table{}
	}
	base.chains = make(map[string][]dp.RuleID, len(read.Chains))
	for name, ch := range read.Chains {
		base.chains[name] = ch.Rules
	}
	p := newPlan(base)
	p.readRanges = map[string][]dp.Element{}
	for name, s := range read.Sets {
		switch {
		case rules.RangesSet(name) != nil:
			p.readRanges[name] = s.Elements
			fallthrough
		case s.Dynamic:
			base.extraSets[name] = true
		}
	}
	p.wanted = make(map[string]bool, len(read.Chains)) // growing would take as long as the rest
	p.adopt(read, before)
	p.planAll(cfg, c)
	for _, name := range slices.Sorted(maps.Keys(base.chains)) {
		if !p.wanted[name] {
			p.goneChains = append(p.goneChains, name)
		}
	}
	wanted := map[string]bool{}
	for _, s := range base.sets {
		wanted[s.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(read.Sets)) {
		if !wanted[name] && !p.wantedSets[name] {
			p.goneSets = append(p.goneSets, name)
		}
	}
	changed, err = f.execute(ctx, p)
	if before != nil && errors.Is(err, errFull) {
		f.state = unknown // which makes maps that are big enough
		return f.compare(ctx, cfg, c)
	}
	if err == nil && before != nil && !there {
		c.Repaired() // a Sync may come before the check that the change causes
	}
	return changed, err
}

// planAll plans everything as new.
func (p *plan) planAll(cfg *config, c *frontend.Changes) {
	c, p.all = c.All(), true
	ports := slices.Collect(c.Ports())
	p.makeRoom(ports)
	p.changeBase(cfg, c.Hairpins(), c.ClusterIPs())
	for _, pc := range ports {
		if pc.After.AffinityTimeout > 0 && pc.After.NumFrontends() > 0 {
			p.base.clients.keep(pc.Name(), p.base.extraSets)
		}
	}
	for _, pc := range ports {
		p.changePort(pc)
	}
	p.base.clients.kept()
}

// makeRoom allocates about as much as the plan of everything needs: growing step by step would cost more than the rest.
func (p *plan) makeRoom(ports []*frontend.PortChange) {
	frontends, slots := 0, 0
	for _, pc := range ports {
		if n := pc.After.NumFrontends(); !wantsNumbers(pc.After) {
			frontends += n
			slots += n * pc.After.Size(model.ClusterSet)
		}
	}
	p.sets[serviceIPs].add = make([]dp.Element, 0, frontends)
	p.sets[endpoints].add = make([]dp.Element, 0, slots)
}

// compatible reports whether a table can be corrected instead of replaced.
func compatible(t *dp.Table) bool {
	sets := newSets()
	fixed := slices.Concat(sets[:endpoints], sets[portEndpoints+1:]) // slots get another name if need be
	for name := range t.Sets {
		if isClients(name) {
			fixed = append(fixed, clientsSet(name, ""))
		} else if s := rules.RangesSet(name); s != nil {
			fixed = append(fixed, s)
		}
	}
	return rules.IsCompatible(t, layoutComment, (&config{}).baseChains(sets, false), fixed)
}

// adopt plans with the existing sets. It plans to delete their elements; those that the plan adds again stay. If
// before, the table as it was, is nil, slot maps have to be rewritten. They, and slot maps with another definition, get
// an unused name.
func (p *plan) adopt(read *dp.Table, before *table) {
	for id, s := range p.base.sets {
		slots := setID(id).hasSlots()
		if slots && before != nil && read.Sets[before.sets[id].Name].Matches(before.sets[id]) {
			s = before.sets[id]
			p.base.sets[id] = s
		}
		if have := read.Sets[s.Name]; have.Matches(s) && (!slots || before != nil) {
			p.sets[id].gone = have.Elements
			p.base.slots[id] = len(have.Elements)
			continue
		}
		name := s.Name
		for i := 2; read.Sets[s.Name] != nil; i++ {
			s.Name = fmt.Sprintf("%s-%d", name, i)
		}
		p.sets[id].missing = true
	}
}
