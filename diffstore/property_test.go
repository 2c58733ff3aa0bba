package diffstore_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/diffstore"
)

// TestNoChangeIsEverLost runs random waves against a dataplane that fails at random. After every wave the diff has to
// be exactly what a simple model expects, and whenever a wave was applied without a failure, the dataplane has to be
// what is wanted.
func TestNoChangeIsEverLost(t *testing.T) {
	for seed := range uint64(500) {
		s := newSimulation(t, seed)
		for range 40 {
			s.step()
		}
	}
}

const half = "half of it" // what a failed attempt may leave behind

// known is what the model knows about a key in the dataplane.
type known struct {
	value  string
	exists bool
	unsure bool
}

type simulation struct {
	t     *testing.T
	seed  uint64
	rand  *rand.Rand
	store *diffstore.Store[int, *diffstore.BufferLeaf]

	wanted    map[int]string
	dataplane map[int]string
	model     map[int]known
	first     bool         // the first wave is not done yet
	described map[int]bool // in this wave
}

func newSimulation(t *testing.T, seed uint64) *simulation {
	s := &simulation{
		t: t, seed: seed, rand: rand.New(rand.NewPCG(seed, 1)), store: diffstore.NewBufferStore[int](),
		wanted: map[int]string{}, dataplane: map[int]string{}, model: map[int]known{}, first: true,
	}
	for range s.rand.IntN(5) { // left by an earlier process
		s.dataplane[s.key()] = s.value()
	}
	s.seedAll()
	return s
}

func (s *simulation) key() int      { return s.rand.IntN(10) }
func (s *simulation) value() string { return []string{"", "a", "b", "ab"}[s.rand.IntN(4)] }
func (s *simulation) chance(percent int) bool {
	return s.rand.IntN(100) < percent
}

// step describes a wave, checks the diff, and applies it with random failures.
func (s *simulation) step() {
	whole := s.first || s.chance(50)
	if whole {
		s.store.Reset()
		for s.chance(20) { // a wave that is abandoned
			s.store.Get(s.key()).WriteString("given up")
			s.store.Delete(s.key())
			s.store.Reset()
		}
	} else {
		s.store.Amend()
	}
	s.described = map[int]bool{}
	s.describe(whole)
	for s.chance(10) { // another program breaks something, and we learn of it in the middle of the wave
		s.breakKey(s.key())
	}
	s.store.Done()
	s.first = false
	for s.chance(10) { // the wave is reopened
		s.describeMore()
		s.store.Done()
	}
	s.checkDiff()
	s.apply()
}

func (s *simulation) describe(whole bool) {
	for range s.rand.IntN(4) {
		key := s.key()
		if s.chance(40) {
			delete(s.wanted, key)
			if !whole {
				s.store.Delete(key)
			}
			continue
		}
		s.wanted[key] = s.value()
		if !whole {
			s.redescribe(key)
		}
	}
	if whole {
		keys := slices.Sorted(maps.Keys(s.wanted))
		s.rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
		for _, key := range keys {
			s.redescribe(key)
		}
	}
}

// redescribe writes a value, sometimes in two parts, sometimes after a false start.
func (s *simulation) redescribe(key int) {
	s.store.Delete(key)
	s.described[key] = true
	value := s.wanted[key]
	for range 1 + s.rand.IntN(2) {
		n := s.rand.IntN(len(value) + 1)
		fmt.Fprint(s.store.Get(key), value[:n])
		value = value[n:]
	}
	s.store.Get(key).WriteString(value)
}

// describeMore reopens a wave after Done: the model considers none of its diff applied.
func (s *simulation) describeMore() {
	for _, key := range slices.Sorted(maps.Keys(s.expected())) {
		k := s.model[key]
		k.unsure = true
		s.model[key] = k
	}
	// Part of the wave may have been applied.
	for e := range s.store.Changed() {
		s.effect(e.Key())
	}
	for e := range s.store.Deleted() {
		s.effect(e.Key())
	}
	key := s.key()
	if !s.described[key] {
		s.wanted[key] = ""
	}
	s.described[key] = true
	s.wanted[key] += "+"
	s.store.Get(key).WriteString("+")
	if key = s.key(); s.chance(50) {
		delete(s.wanted, key)
		delete(s.described, key)
		s.store.Delete(key)
	}
}

// expected is the diff as the model sees it.
func (s *simulation) expected() map[int]diffstore.Change {
	diff := map[int]diffstore.Change{}
	for key := range 10 {
		value, want := s.wanted[key]
		switch k := s.model[key]; {
		case want && !k.exists:
			diff[key] = diffstore.Created
		case want && (k.unsure || k.value != value):
			diff[key] = diffstore.Updated
		case !want && (k.exists || k.unsure):
			diff[key] = diffstore.Deleted
		}
	}
	return diff
}

func (s *simulation) checkDiff() {
	expected := s.expected()
	require.Equal(s.t, len(expected) > 0, s.store.HasChanges(), "seed %d", s.seed)
	for key := range 10 {
		value, want := s.wanted[key]
		leaf, wanted := s.store.Wanted(key)
		require.Equal(s.t, want, wanted, "seed %d", s.seed)
		if want {
			require.Equal(s.t, value, leaf.String(), "seed %d", s.seed)
		}
	}
	keys := func(changes ...diffstore.Change) []int {
		var keys []int
		for _, key := range slices.Sorted(maps.Keys(expected)) {
			if slices.Contains(changes, expected[key]) {
				keys = append(keys, key)
			}
		}
		return keys
	}
	var created, updated, changed, deleted []int
	for e := range s.store.Created() {
		created = append(created, e.Key())
	}
	for e := range s.store.Updated() {
		updated = append(updated, e.Key())
	}
	for e := range s.store.Changed() {
		changed = append(changed, e.Key())
		s.checkEntry(e)
		require.Equal(s.t, s.wanted[e.Key()], e.Value().String(), "seed %d", s.seed)
	}
	for e := range s.store.Deleted() {
		deleted = append(deleted, e.Key())
		s.checkEntry(e)
		if k := s.model[e.Key()]; k.exists {
			require.Equal(s.t, k.value, e.Value().String(), "seed %d", s.seed)
		}
	}
	require.Equal(s.t, keys(diffstore.Created), created, "seed %d", s.seed)
	require.Equal(s.t, keys(diffstore.Updated), updated, "seed %d", s.seed)
	require.Equal(s.t, keys(diffstore.Created, diffstore.Updated), changed, "seed %d", s.seed)
	require.Equal(s.t, keys(diffstore.Deleted), deleted, "seed %d", s.seed)
}

func (s *simulation) checkEntry(e *diffstore.Entry[int, *diffstore.BufferLeaf]) {
	k := s.model[e.Key()]
	require.Equal(s.t, s.expected()[e.Key()], e.Change(), "seed %d", s.seed)
	require.Equal(s.t, k.unsure, e.Retry(), "seed %d", s.seed)
	applied, exists := e.Applied()
	require.Equal(s.t, k.exists, exists, "seed %d", s.seed)
	if exists {
		require.Equal(s.t, k.value, applied.String(), "seed %d", s.seed)
	}
	if !k.unsure { // without a retry the record is reliable
		value, there := s.dataplane[e.Key()]
		require.Equal(s.t, there, exists, "seed %d", s.seed)
		require.Equal(s.t, value, k.value, "seed %d", s.seed)
	}
}

// apply applies the diff, fully or in part, and reports the outcome to the store and the model.
func (s *simulation) apply() {
	diff := s.expected()
	switch s.rand.IntN(6) {
	case 0: // a transaction that fails
		s.store.Rollback()
		return
	case 1: // nobody knows what happened
		for _, key := range slices.Sorted(maps.Keys(diff)) {
			s.effect(key)
			k := s.model[key]
			k.unsure = true
			s.model[key] = k
		}
		s.store.NotAppliedAll()
		return
	case 2: // some of it was applied, and the dataplane is read again
		for _, key := range slices.Sorted(maps.Keys(diff)) {
			s.effect(key)
		}
		s.seedAll()
		return
	case 3: // some entries fail
		for _, key := range slices.Sorted(maps.Keys(diff)) {
			if s.chance(50) {
				s.effect(key)
				s.store.NotApplied(key)
				k := s.model[key]
				k.unsure = true
				s.model[key] = k
				continue
			}
			s.applied(key)
		}
		if key := s.key(); diff[key] == diffstore.Unchanged { // and something else breaks
			s.breakKey(key)
		}
		return
	}
	for _, key := range slices.Sorted(maps.Keys(diff)) {
		s.applied(key)
	}
	require.Equal(s.t, s.wanted, s.dataplane, "seed %d", s.seed)
}

func (s *simulation) applied(key int) {
	value, want := s.wanted[key]
	if !want {
		delete(s.dataplane, key)
		delete(s.model, key)
		return
	}
	s.dataplane[key] = value
	s.model[key] = known{value: value, exists: true}
}

// effect puts a key into a state in which a failed attempt may leave it.
func (s *simulation) effect(key int) {
	switch s.rand.IntN(4) {
	case 0:
		s.dataplane[key] = half
	case 1:
		delete(s.dataplane, key)
	case 2:
		if value, want := s.wanted[key]; want {
			s.dataplane[key] = value
		} else {
			delete(s.dataplane, key)
		}
	}
}

// breakKey changes a key in the dataplane and reports it.
func (s *simulation) breakKey(key int) {
	s.effect(key)
	s.store.NotApplied(key)
	k := s.model[key]
	k.unsure = true
	s.model[key] = k
}

// seedAll reports to the store and the model what the dataplane holds.
func (s *simulation) seedAll() {
	s.store.Forget()
	clear(s.model)
	for _, key := range slices.Sorted(maps.Keys(s.dataplane)) {
		s.store.Seed(key).WriteString(s.dataplane[key])
		s.model[key] = known{value: s.dataplane[key], exists: true}
	}
}
