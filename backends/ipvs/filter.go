package ipvs

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"syscall"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/diffstore"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// filter is the nftables table: its wanted content, and what it was last known to hold.
type filter struct {
	dataplane nft.Interface
	key       nft.TableKey
	sets      *sets
	elements  [numSets]*diffstore.Store[string, *elementLeaf] // by key
	chains    *diffstore.Store[string, *chainLeaf]            // by name
	ranges    *diffstore.Store[string, *rangesLeaf]           // sets of source ranges, by name
	uses      frontend.RefCounts[string]                      // of chains, by service ports
	checks    frontend.RefCounts[uint16]                      // ports of health checks, by services

	known   bool // the stores have what the table holds; otherwise it has to be read
	there   bool // the table exists, with this layout
	replace bool // it exists, with another layout
}

// elementLeaf is the value of an element, "" in sets.
type elementLeaf = diffstore.AnyLeaf[string]

type chainLeaf = diffstore.AnyLeaf[chain]

// rangesLeaf has the elements of a set.
type rangesLeaf = diffstore.AnyLeaf[[]nft.Element]

// chain is a chain with the IDs of its rules. One that was read has nothing else.
type chain struct {
	*rules.Chain
	ids []nft.RuleID
}

// rangesSets returns the names of the sets of source ranges that a chain refers to.
func (c chain) rangesSets() (names []string) {
	for _, r := range c.Rules {
		for _, s := range r.Statements {
			if in, ok := s.(nft.InSet); ok && rules.RangesSet(in.Set.Name) != nil {
				names = append(names, in.Set.Name)
			}
		}
	}
	return names
}

// element is an element of a set, or of a map with a value.
type element struct {
	set        setID
	key, value string
}

func newFilter(d nft.Interface, key nft.TableKey) *filter {
	f := &filter{dataplane: d, key: key, sets: newSets()}
	f.chains = diffstore.NewAnyStore[string](func(a, b chain) bool { return slices.Equal(a.ids, b.ids) })
	f.ranges = diffstore.NewAnyStore[string](slices.Equal[[]nft.Element])
	for id := range f.elements {
		f.elements[id] = diffstore.NewAnyStore[string](func(a, b string) bool { return a == b })
	}
	return f
}

// store is what the stores have in common.
type store interface {
	Done()
	Amend()
	Reset()
	Forget()
}

func (f *filter) each(do func(store)) {
	do(f.chains)
	do(f.ranges)
	for _, s := range f.elements {
		do(s)
	}
}

// reset forgets the wanted content.
func (f *filter) reset() {
	f.each(store.Reset)
	clear(f.uses)
	clear(f.checks)
}

func (f *filter) addChain(c rules.Chain) {
	f.chains.Get(c.Name).Set(chain{&c, nft.RuleIDs(c.Rules, f.key.Family)})
}

// hold keeps chains in the table for a service port, until they are released as often. Chains that restrict traffic to
// sources come with the chain of that list, and with the set that it refers to, if any. hold returns the names of them
// all.
func (f *filter) hold(sources *rules.Sources, chains []rules.Chain) (names []string) {
	if sources != nil {
		c, set, ranges := sources.Chain()
		if set != nil {
			f.ranges.Get(set.Name).Set(ranges)
		}
		chains = append(chains, c)
	}
	for _, c := range chains {
		if f.uses.Add(c.Name) {
			f.addChain(c)
		}
		names = append(names, c.Name)
	}
	return names
}

// release drops chains that nothing holds any more, with the sets of source ranges that they refer to. Nothing that is
// wanted may point at them.
func (f *filter) release(names []string) {
	for _, name := range names {
		if !f.uses.Remove(name) {
			continue
		}
		if leaf, wanted := f.chains.Wanted(name); wanted {
			for _, s := range leaf.Get().rangesSets() {
				f.ranges.Delete(s)
			}
		}
		f.chains.Delete(name)
	}
}

// has reports whether a chain is wanted.
func (f *filter) has(name string) bool {
	_, wanted := f.chains.Wanted(name)
	return wanted
}

func (f *filter) set(list ...element) {
	for _, e := range list {
		f.elements[e.set].Get(e.key).Set(e.value)
	}
}

func (f *filter) unset(list ...element) {
	for _, e := range list {
		f.elements[e.set].Delete(e.key)
	}
}

// show makes packets to a virtual server go to its chain, unless it cannot serve them.
func (f *filter) show(s *server) {
	chain := s.chain
	if s.owner == nil || s.blocked || s.key.Mark != 0 {
		chain = ""
	}
	switch chain {
	case s.shown:
	case "":
		f.unset(s.element())
	default:
		f.set(s.element())
	}
	s.shown = chain
}

// setHealthChecks follows the ports at which the node answers load balancers.
func (f *filter) setHealthChecks(d frontend.Diff[frontend.HealthCheck]) {
	for _, h := range d.Removed {
		if f.checks.Remove(h.NodePort) {
			f.unset(healthCheck(h.NodePort))
		}
	}
	for _, h := range d.Added {
		if f.checks.Add(h.NodePort) { // two services may have the same one, by mistake
			f.set(healthCheck(h.NodePort))
		}
	}
}

func healthCheck(port uint16) element {
	return element{set: healthChecks, key: string(nft.AppendPort(nft.AppendProtocol(nil, model.TCP), port))}
}

// element is what sends packets to a virtual server.
func (s *server) element() element {
	return element{serviceIPs, rules.Key(s.key.Addr, s.key.Protocol, s.key.Port), s.chain}
}

// setHairpins follows the endpoints that may reach themselves through a service.
func (f *filter) setHairpins(d frontend.Diff[netip.Addr]) {
	for _, a := range d.Removed {
		f.unset(hairpin(a))
	}
	for _, a := range d.Added {
		f.set(hairpin(a))
	}
}

func hairpin(a netip.Addr) element { return element{set: hairpins, key: rules.HairpinKey(a)} }

// read reads the table. One of another layout counts as none: it is replaced.
func (f *filter) read(ctx context.Context) error {
	table, err := f.dataplane.ReadTable(ctx, f.key, nil)
	if err != nil {
		return fmt.Errorf("read table %v: %w", f.key, err)
	}
	f.each(store.Forget)
	f.known, f.there = true, table != nil && f.sameLayout(table)
	f.replace = table != nil && !f.there
	if !f.there {
		return nil
	}
	for name, c := range table.Chains {
		f.chains.Seed(name).Set(chain{ids: c.Rules})
	}
	for name, s := range table.Sets {
		if rules.RangesSet(name) != nil {
			f.ranges.Seed(name).Set(s.Elements)
		}
	}
	for id, s := range f.sets {
		for _, e := range table.Sets[s.Name].Elements {
			f.elements[id].Seed(e.Key).Set(e.Value)
		}
	}
	return nil
}

// sameLayout reports whether a table can be corrected rather than replaced.
func (f *filter) sameLayout(table *nft.Table) bool {
	sets := slices.Clone(f.sets[:])
	for _, s := range f.sets {
		if table.Sets[s.Name] == nil {
			return false
		}
	}
	for name := range table.Sets {
		if s := rules.RangesSet(name); s != nil {
			sets = append(sets, s)
		}
	}
	chains := append((&config{}).baseChains(f.sets), (&others{}).chains(f.sets)...)
	return len(table.Sets) == len(sets) && rules.IsCompatible(table, layoutComment, chains, sets)
}

// commit applies the wanted content. With final it also deletes chains, to which packets may be on their way until
// then, and their sets.
func (f *filter) commit(ctx context.Context, final bool) error {
	err := rules.Retry(func() error {
		if !f.known {
			if err := f.read(ctx); err != nil {
				return err
			}
		}
		err := rules.Apply(ctx, f.dataplane, f.transaction(final))
		if final && errors.Is(err, syscall.EBUSY) {
			// Before Linux 6.2 a chain counts as used for a while after the last element that points at it is deleted.
			final = false
			err = rules.Apply(ctx, f.dataplane, f.transaction(final))
		}
		f.known = err == nil
		return err
	})
	if err != nil {
		return fmt.Errorf("nftables: %w", err)
	}
	f.there, f.replace = true, false
	if !final { // chains and sets that are not wanted are still there
		for e := range f.chains.Deleted() {
			held, _ := e.Applied()
			f.chains.Seed(e.Key()).Set(chain{ids: held.Get().ids})
		}
		for e := range f.ranges.Deleted() {
			held, _ := e.Applied()
			f.ranges.Seed(e.Key()).Set(held.Get())
		}
	}
	f.each(store.Amend)
	return nil
}

// transaction returns the difference between what the table holds and what is wanted.
func (f *filter) transaction(final bool) *nft.Transaction {
	f.each(store.Done)
	tx := nft.NewTransaction(f.key)
	if f.replace {
		tx.DeleteTable()
	}
	if !f.there {
		tx.AddTable(layoutComment)
		for _, s := range f.sets {
			tx.AddSet(s)
		}
	}
	for e := range f.ranges.Created() {
		tx.AddSet(rules.RangesSet(e.Key()))
	}
	var added, changed []rules.Chain
	for e := range f.chains.Created() {
		added = append(added, *e.Value().Get().Chain)
	}
	for e := range f.chains.Updated() {
		changed = append(changed, *e.Value().Get().Chain)
	}
	rules.SetChains(tx, added, changed)
	for e := range f.ranges.Changed() {
		set := rules.RangesSet(e.Key())
		if held, there := e.Applied(); there { // another program changed it
			tx.DeleteElements(set, held.Get()...)
		}
		tx.AddElements(set, e.Value().Get()...)
	}
	for id, s := range f.elements {
		tx.DeleteElements(f.sets[id], elementsOf(s.Deleted())...)
		tx.ReplaceElements(f.sets[id], elementsOf(s.Updated())...)
		tx.AddElements(f.sets[id], elementsOf(s.Created())...)
	}
	if final {
		var chains, sets []string
		for e := range f.chains.Deleted() {
			chains = append(chains, e.Key())
		}
		for e := range f.ranges.Deleted() {
			sets = append(sets, e.Key())
		}
		rules.DeleteChains(tx, chains, sets)
	}
	return tx
}

func elementsOf(entries iter.Seq[*diffstore.Entry[string, *elementLeaf]]) (list []nft.Element) {
	for e := range entries {
		list = append(list, nft.Element{Key: e.Key(), Value: e.Value().Get()})
	}
	return list
}

// cleanUp deletes the table.
func (f *filter) cleanUp(ctx context.Context) error {
	f.known = false
	return rules.DeleteTable(ctx, f.dataplane, f.key)
}
