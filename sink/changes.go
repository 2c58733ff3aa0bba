package sink

import (
	"cmp"
	"iter"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Change is a service that differs between two snapshots, itself or in its endpoints.
type Change struct {
	// Name is the name of the service in Old, New or both.
	Name model.ServiceName
	// Old and New are the service with its endpoints before and after. Old is nil if the service was added, New if it
	// was removed.
	Old, New *ServiceEntry
}

// ChangesSince yields the services that differ between old and s, in the order of their names. A change that was
// reverted in between does not count.
//
// The cost is proportional to what changed between the two, however large the cluster and however old the snapshot. If
// old is nil, everything in s is new. If old is newer than s, the changes are those from old back to s. If old is a
// snapshot of another [FullState], all services are compared.
func (s *Snapshot) ChangesSince(old *Snapshot) iter.Seq[Change] {
	if old == nil {
		old = &Snapshot{}
	}
	return func(yield func(Change) bool) {
		if names, ok := s.namesSince(old); ok {
			compareNames(old, s, names, yield)
		} else {
			compareAll(old, s, yield)
		}
	}
}

// namesSince returns the names of the entries that changed since an older snapshot, sorted, including those that
// changed and were reverted. It returns false if that is not known.
func (s *Snapshot) namesSince(old *Snapshot) (_ []model.ServiceName, ok bool) {
	if s.origin != old.origin || s.changes < old.changes {
		return nil, false
	}
	n := s.changes - old.changes
	if n > uint64(len(s.history)) {
		return nil, false
	}
	names := slices.Clone(s.history[len(s.history)-int(n):])
	slices.SortFunc(names, model.ServiceName.Compare)
	return slices.Compact(names), true
}

func compareNames(old, new *Snapshot, names []model.ServiceName, yield func(Change) bool) {
	for _, name := range names {
		o, n := old.Service(name), new.Service(name)
		if !o.equal(n) && !yield(Change{name, o, n}) {
			return
		}
	}
}

func compareAll(old, new *Snapshot, yield func(Change) bool) {
	byName := func(a, b *ServiceEntry) int { return a.name.Compare(b.name) }
	for o, n := range pairs(slices.Collect(old.Services()), slices.Collect(new.Services()), byName) {
		if !o.equal(n) && !yield(Change{cmp.Or(o, n).name, o, n}) {
			return
		}
	}
}

// pairs merges two sorted lists. It yields elements that compare as equal together, and nil in place of an element that
// one list lacks. It skips identical elements, which are usually nearly all.
func pairs[T any](olds, news []*T, compare func(a, b *T) int) iter.Seq2[*T, *T] {
	return func(yield func(old, new *T) bool) {
		for {
			same := identical(olds, news)
			olds, news = olds[same:], news[same:]
			var o, n *T
			switch {
			case len(olds) == 0 && len(news) == 0:
				return
			case len(olds) == 0:
				n = news[0]
			case len(news) == 0:
				o = olds[0]
			default:
				c := compare(olds[0], news[0])
				if c <= 0 {
					o = olds[0]
				}
				if c >= 0 {
					n = news[0]
				}
			}
			if o != nil {
				olds = olds[1:]
			}
			if n != nil {
				news = news[1:]
			}
			if !yield(o, n) {
				return
			}
		}
	}
}

// ServiceChanged reports whether the service itself was added, removed or changed, not only its endpoints.
func (c Change) ServiceChanged() bool {
	return c.Old == nil || c.New == nil || !c.Old.Service.Equal(c.New.Service)
}

// Endpoints yields the endpoints that differ before and after, in [model.EndpointKey] order: the old one, nil if it was
// added, and the new one, nil if it was removed.
func (c Change) Endpoints() iter.Seq2[*model.Endpoint, *model.Endpoint] {
	return func(yield func(old, new *model.Endpoint) bool) {
		var olds, news []*model.Endpoint
		if c.Old != nil {
			olds = c.Old.Endpoints
		}
		if c.New != nil {
			news = c.New.Endpoints
		}
		for o, n := range pairs(olds, news, compareEndpoints) {
			if !o.Equal(n) && !yield(o, n) {
				return
			}
		}
	}
}

// identical returns the number of elements at the beginning of two lists that are the same ones.
func identical[T any](a, b []*T) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}
