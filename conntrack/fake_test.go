package conntrack

import (
	"context"
	"slices"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// fakeTable is a [Table] in memory. The zero value is an empty table. It is safe for concurrent use.
type fakeTable struct {
	mu       sync.Mutex
	flows    []Flow
	passes   map[model.Family]int
	failures []error

	selections map[model.Family][]Selection // of the last pass
}

var _ Table = (*fakeTable)(nil)

// Add adds flows at the end.
func (t *fakeTable) Add(flows ...Flow) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.flows = append(t.flows, flows...)
}

// Flows returns the remaining flows.
func (t *fakeTable) Flows() []Flow {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.flows)
}

// FailNext makes the next calls of DeleteUDP, as many as there are errors, fail. Each checks the first half of the
// flows before it fails: an interrupted pass has done a part of its work. A nil error lets a call succeed.
func (t *fakeTable) FailNext(errs ...error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failures = append(t.failures, errs...)
}

// DeleteUDP implements [Table]: it passes only selected flows to stale, which must not call the table.
func (t *fakeTable) DeleteUDP(
	ctx context.Context, family model.Family, only []Selection, stale func(Flow) bool,
) (deleted int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.passes == nil {
		t.passes, t.selections = map[model.Family]int{}, map[model.Family][]Selection{}
	}
	t.passes[family]++
	t.selections[family] = slices.Clone(only)
	selected := func(f Flow) bool {
		return len(only) == 0 || slices.ContainsFunc(only, func(s Selection) bool { return s.matches(f) })
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	seen := len(t.flows)
	if len(t.failures) > 0 {
		err, t.failures = t.failures[0], t.failures[1:]
		if err != nil {
			seen /= 2
		}
	}
	kept := t.flows[:0:0]
	for i, f := range t.flows {
		if i < seen && model.FamilyOf(f.Destination.Addr()) == family && selected(f) && stale(f) {
			deleted++
			continue
		}
		kept = append(kept, f)
	}
	t.flows = kept
	return deleted, err
}

// lastSelections returns those that DeleteUDP was last called with for a family; none if that was a pass over all
// flows.
func (t *fakeTable) lastSelections(family model.Family) []Selection {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.selections[family]
}

// passesOf returns how often DeleteUDP was called for a family.
func (t *fakeTable) passesOf(family model.Family) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passes[family]
}
