package ipvs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"

	nft "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
)

// filter is the nftables table: its wanted content, and what it was last known to hold.
type filter struct {
	dataplane nft.Interface
	key       nft.TableKey
	sets      *sets

	chains map[string]rules.Chain
	want   map[element]string // values; "" in sets
	// actual is what the table holds. It is valid while known is set; otherwise the table has to be read.
	actual       map[element]string
	actualChains map[string][]nft.RuleID
	known        bool

	dirty       map[element]bool
	dirtyChains map[string]bool
}

// element is an element of a set or map, by its key.
type element struct {
	set setID
	key string
}

func newFilter(d nft.Interface, key nft.TableKey) *filter {
	return &filter{dataplane: d, key: key, sets: newSets(), chains: map[string]rules.Chain{}, want: map[element]string{},
		dirty: map[element]bool{}, dirtyChains: map[string]bool{}}
}

// reset forgets the wanted content.
func (f *filter) reset() {
	for e := range f.want {
		f.dirty[e] = true
	}
	clear(f.want)
	for name := range f.chains {
		f.removeChain(name)
	}
}

func (f *filter) addChain(c rules.Chain) {
	f.chains[c.Name] = c
	f.dirtyChains[c.Name] = true
}

// removeChain marks a chain for deletion. Nothing that is wanted may point at it.
func (f *filter) removeChain(name string) {
	delete(f.chains, name)
	f.dirtyChains[name] = true
}

// has reports whether a chain is wanted.
func (f *filter) has(name string) bool {
	_, ok := f.chains[name]
	return ok
}

func (f *filter) set(e element, value string) {
	if old, ok := f.want[e]; !ok || old != value {
		f.want[e] = value
		f.dirty[e] = true
	}
}

func (f *filter) unset(e element) {
	if _, ok := f.want[e]; ok {
		delete(f.want, e)
		f.dirty[e] = true
	}
}

// read reads the table. One of another layout counts as none: it is replaced.
func (f *filter) read(ctx context.Context) (replace bool, err error) {
	table, err := f.dataplane.ReadTable(ctx, f.key, nil)
	if err != nil {
		return false, fmt.Errorf("read table %v: %w", f.key, err)
	}
	f.actual, f.actualChains, f.known = map[element]string{}, map[string][]nft.RuleID{}, true
	for e := range f.want {
		f.dirty[e] = true
	}
	for name := range f.chains {
		f.dirtyChains[name] = true
	}
	if table == nil {
		return false, nil
	}
	if !f.sameLayout(table) {
		return true, nil
	}
	for name, c := range table.Chains {
		f.actualChains[name] = c.Rules
		f.dirtyChains[name] = true
	}
	for id, s := range f.sets {
		for _, e := range table.Sets[s.Name].Elements {
			f.actual[element{setID(id), e.Key}] = e.Value
			f.dirty[element{setID(id), e.Key}] = true
		}
	}
	return false, nil
}

// sameLayout reports whether a table can be corrected rather than replaced.
func (f *filter) sameLayout(table *nft.Table) bool {
	for _, s := range f.sets {
		if table.Sets[s.Name] == nil {
			return false
		}
	}
	return len(table.Sets) == len(f.sets) &&
		rules.IsCompatible(table, layoutComment, (&config{}).baseChains(f.sets), f.sets[:])
}

// commit applies the wanted content. With final it also deletes what may be needed until then: guards of addresses, and
// chains. The caller commits without it, then removes addresses, then commits with it.
func (f *filter) commit(ctx context.Context, final bool) error {
	withChains := final
	return rules.Retry(func() error {
		replace, err := false, error(nil)
		if !f.known {
			if replace, err = f.read(ctx); err != nil {
				return err
			}
		}
		err = rules.Apply(ctx, f.dataplane, f.transaction(replace, final, withChains))
		if withChains && errors.Is(err, syscall.EBUSY) {
			// Before Linux 6.2 a chain counts as used for a while after the last element that points at it is deleted.
			withChains = false
			err = rules.Apply(ctx, f.dataplane, f.transaction(replace, final, withChains))
		}
		if err != nil {
			f.known = false
			return fmt.Errorf("nftables: %w", err)
		}
		f.applied(final, withChains)
		return nil
	})
}

// keeps reports whether an element stays until the final commit although it is not wanted.
func keeps(e element, final bool) bool { return !final && e.set == boundIPs }

// transaction returns the difference between the actual and the wanted content.
func (f *filter) transaction(replace, final, withChains bool) *nft.Transaction {
	tx := nft.NewTransaction(f.key)
	if replace {
		tx.DeleteTable()
	}
	if len(f.actualChains) == 0 && len(f.chains) > 0 {
		tx.AddTable(layoutComment)
		for _, s := range f.sets {
			tx.AddSet(s)
		}
	}
	f.changeChains(tx)
	type change struct{ add, replace, remove []nft.Element }
	var changes [numSets]change
	for e := range f.dirty {
		c := &changes[e.set]
		want, wanted := f.want[e]
		have, there := f.actual[e]
		x := nft.Element{Key: e.key, Value: want}
		switch {
		case wanted && !there:
			c.add = append(c.add, x)
		case wanted && want != have:
			c.replace = append(c.replace, x)
		case !wanted && there && !keeps(e, final):
			x.Value = have
			c.remove = append(c.remove, x)
		}
	}
	for id, s := range f.sets {
		c := &changes[id]
		for _, list := range [][]nft.Element{c.add, c.replace, c.remove} {
			slices.SortFunc(list, func(a, b nft.Element) int { return strings.Compare(a.Key, b.Key) })
		}
		// Ranges must not overlap at any moment, so deletions come first.
		tx.DeleteElements(s, c.remove...)
		tx.ReplaceElements(s, c.replace...)
		tx.AddElements(s, c.add...)
	}
	if withChains {
		f.deleteChains(tx)
	}
	return tx
}

// changeChains adds chains, and corrects those whose rules differ. Chains come before the rules that point at them.
func (f *filter) changeChains(tx *nft.Transaction) {
	var added, changed []rules.Chain
	for _, name := range slices.Sorted(maps.Keys(f.dirtyChains)) {
		c, wanted := f.chains[name]
		ids, there := f.actualChains[name]
		switch {
		case !wanted:
		case !there:
			added = append(added, c)
		case !slices.Equal(ids, nft.RuleIDs(c.Rules, f.key.Family)):
			changed = append(changed, c)
		}
	}
	rules.SetChains(tx, added, changed)
}

// deleteChains deletes chains that nothing points at any more.
func (f *filter) deleteChains(tx *nft.Transaction) {
	var gone []string
	for _, name := range slices.Sorted(maps.Keys(f.dirtyChains)) {
		if _, there := f.actualChains[name]; there && !f.has(name) {
			gone = append(gone, name)
		}
	}
	rules.DeleteChains(tx, gone, nil)
}

// applied notes that a transaction was applied.
func (f *filter) applied(final, withChains bool) {
	left := map[element]bool{}
	for e := range f.dirty {
		if want, wanted := f.want[e]; wanted {
			f.actual[e] = want
		} else if _, there := f.actual[e]; there && keeps(e, final) {
			left[e] = true
		} else {
			delete(f.actual, e)
		}
	}
	f.dirty = left
	leftChains := map[string]bool{}
	for name := range f.dirtyChains {
		if c, wanted := f.chains[name]; wanted {
			f.actualChains[name] = nft.RuleIDs(c.Rules, f.key.Family)
		} else if _, there := f.actualChains[name]; there && !withChains {
			leftChains[name] = true
		} else {
			delete(f.actualChains, name)
		}
	}
	f.dirtyChains = leftChains
}

// cleanUp deletes the table.
func (f *filter) cleanUp(ctx context.Context) error {
	f.known = false
	return rules.Delete(ctx, f.dataplane, f.key)
}
