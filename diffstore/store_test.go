package diffstore_test

import (
	"iter"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/diffstore"
)

type (
	store = diffstore.Store[string, *diffstore.BufferLeaf]
	entry = diffstore.Entry[string, *diffstore.BufferLeaf]
	wants map[string]string
)

// describe begins a wave that wants exactly this, and ends it.
func describe(s *store, w wants) {
	s.Reset()
	for key, value := range w {
		s.Get(key).WriteString(value)
	}
	s.Done()
}

// amend does the same with a wave that Amend begins; "-" deletes.
func amend(s *store, w wants) {
	s.Amend()
	for key, value := range w {
		if value == "-" {
			s.Delete(key)
			continue
		}
		s.Get(key).WriteString(value)
	}
	s.Done()
}

// diff lists the diff as "created a=1", "updated a=2 was 1" and "deleted a=2", with "retry" for retries.
func diff(s *store) []string {
	lines := []string{}
	for _, seq := range []iter.Seq[*entry]{s.Created(), s.Updated(), s.Deleted()} {
		for e := range seq {
			line := e.Change().String() + " " + e.Key() + "=" + e.Value().String()
			if old, ok := e.Applied(); ok && e.Change() == diffstore.Updated {
				line += " was " + old.String()
			}
			if e.Retry() {
				line += " retry"
			}
			lines = append(lines, line)
		}
	}
	return lines
}

func TestDiffOfTheWaveAfterAFailure(t *testing.T) {
	for _, c := range []struct {
		name   string
		before wants        // applied
		wave   wants        // applied as far as failure says
		fail   func(*store) // reports the failure
		next   wants
		diff   []string
		clean  bool // nothing is a retry
	}{
		{"a failed create is created again",
			wants{}, wants{"a": "1"}, notApplied("a"), wants{"a": "1"}, []string{"created a=1 retry"}, false},
		{"a failed create is created with another value",
			wants{}, wants{"a": "1"}, notApplied("a"), wants{"a": "2"}, []string{"created a=2 retry"}, false},
		{"a failed create that is not wanted any more is deleted, for it may be there",
			wants{}, wants{"a": "1"}, notApplied("a"), wants{}, []string{"deleted a=1 retry"}, false},
		{"a failed update is updated again though the value is the same",
			wants{"a": "1"}, wants{"a": "2"}, notApplied("a"), wants{"a": "2"}, []string{"updated a=2 was 1 retry"},
			false},
		{"a failed update is updated again though the value is the one before it",
			wants{"a": "1"}, wants{"a": "2"}, notApplied("a"), wants{"a": "1"}, []string{"updated a=1 was 1 retry"},
			false},
		{"a failed update that is not wanted any more is deleted",
			wants{"a": "1"}, wants{"a": "2"}, notApplied("a"), wants{}, []string{"deleted a=1 retry"}, false},
		{"a failed delete is deleted again though nobody mentions it",
			wants{"a": "1"}, wants{}, notApplied("a"), wants{}, []string{"deleted a=1 retry"}, false},
		{"a failed delete that is wanted again is updated though the value is the same",
			wants{"a": "1"}, wants{}, notApplied("a"), wants{"a": "1"}, []string{"updated a=1 was 1 retry"}, false},
		{"only what failed is there again",
			wants{}, wants{"a": "1", "b": "1"}, notApplied("b"), wants{"a": "1", "b": "1"},
			[]string{"created b=1 retry"}, false},
		{"an entry that was not in the diff can be reported, too",
			wants{"a": "1"}, wants{"a": "1"}, notApplied("a"), wants{"a": "1"}, []string{"updated a=1 was 1 retry"},
			false},
		{"a key that the store does not know may be there: it is deleted",
			wants{}, wants{}, notApplied("a"), wants{}, []string{"deleted a= retry"}, false},
		{"a wave that failed as a whole is there again as a whole",
			wants{"a": "1", "b": "1", "c": "1"}, wants{"a": "2", "c": "1", "d": "1"}, (*store).NotAppliedAll,
			wants{"a": "1", "c": "1", "d": "1"},
			[]string{"created d=1 retry", "updated a=1 was 1 retry", "deleted b=1 retry"}, false},
		{"a transaction that failed has changed nothing",
			wants{"a": "1", "b": "1"}, wants{"a": "2", "d": "1"}, (*store).Rollback, wants{"a": "2", "d": "1"},
			[]string{"created d=1", "updated a=2 was 1", "deleted b=1"}, true},
		{"after a transaction that failed it is no change to want what was there before",
			wants{"a": "1", "b": "1"}, wants{"a": "2", "d": "1"}, (*store).Rollback, wants{"a": "1", "b": "1"},
			[]string{}, true},
		{"nothing is known of a dataplane that has been emptied",
			wants{"a": "1", "b": "1"}, wants{"a": "2", "b": "1"}, (*store).Forget, wants{"a": "2"},
			[]string{"created a=2"}, true},
		{"what has been read after a failure counts",
			wants{"a": "1", "b": "1"}, wants{"a": "2", "c": "1"},
			func(s *store) {
				s.Forget()
				s.Seed("a").WriteString("2")
				s.Seed("b").WriteString("0")
			},
			wants{"a": "2", "c": "1"}, []string{"created c=1", "deleted b=0"}, true},
		{"the last statement about what the dataplane holds counts",
			wants{"a": "1"}, wants{"a": "2"},
			func(s *store) {
				s.NotApplied("a")
				s.Seed("a").WriteString("half")
				s.Seed("a").WriteString("0")
			},
			wants{"a": "2"}, []string{"updated a=2 was 0"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, wave := range []struct {
				kind string
				next func(*store)
			}{
				{"described anew", func(s *store) { describe(s, c.next) }},
				{"amended", func(s *store) {
					changes := wants{}
					for key, value := range c.next {
						if c.wave[key] != value {
							changes[key] = value
						}
					}
					for key := range c.wave {
						if _, stays := c.next[key]; !stays {
							changes[key] = "-"
						}
					}
					amend(s, changes)
				}},
			} {
				s := diffstore.NewBufferStore[string]()
				describe(s, c.before)
				describe(s, c.wave)
				c.fail(s)
				wave.next(s)
				assert.Equal(t, c.diff, diff(s), wave.kind)
				assert.Equal(t, len(c.diff) > 0, s.HasChanges(), wave.kind)

				// Failing once more changes nothing about it.
				if !c.clean {
					s.NotAppliedAll()
					wave.next(s)
					assert.Equal(t, c.diff, diff(s), "%s, failed twice", wave.kind)
				}
				// Once it has been applied, nothing of the failure is left.
				describe(s, c.next)
				describe(s, c.next)
				assert.Empty(t, diff(s), "%s, applied", wave.kind)
				describe(s, wants{})
				for e := range s.Deleted() {
					assert.False(t, e.Retry(), "%s, applied", wave.kind)
				}
			}
		})
	}
}

func notApplied(key string) func(*store) {
	return func(s *store) { s.NotApplied(key) }
}

func TestDeletionsAreChanges(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": "1", "b": "1"})
	describe(s, wants{"b": "1"})
	assert.True(t, s.HasChanges())
	describe(s, wants{"b": "1"})
	assert.False(t, s.HasChanges())
}

func TestACreatedEntryIsNotUpdated(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"b": "1", "c": "1"})
	describe(s, wants{"a": "1", "b": "2", "c": "1"})
	assert.Equal(t, []string{"created a=1", "updated b=2 was 1"}, diff(s))
	var changed []string
	for e := range s.Changed() {
		changed = append(changed, e.Key())
	}
	assert.Equal(t, []string{"a", "b"}, changed)
}

func TestAnEmptyValueIsAValue(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": ""})
	assert.Equal(t, []string{"created a="}, diff(s))
	describe(s, wants{"a": ""})
	assert.Empty(t, diff(s))
	describe(s, wants{})
	assert.Equal(t, []string{"deleted a="}, diff(s))
}

func TestIterationIsInKeyOrder(t *testing.T) {
	s := diffstore.NewBufferStore[int]()
	for _, key := range []int{5, 100, -1, 20, 3} {
		s.Get(key)
	}
	s.Done()
	var keys []int
	for e := range s.Changed() {
		keys = append(keys, e.Key())
	}
	assert.Equal(t, []int{-1, 3, 5, 20, 100}, keys)
}

func TestThereIsNoDiffBeforeDone(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	s.Get("a").WriteString("1")
	assert.False(t, s.HasChanges())
	assert.Empty(t, diff(s))
	s.Done()
	assert.Equal(t, []string{"created a=1"}, diff(s))
	s.Reset()
	assert.False(t, s.HasChanges())
	assert.Empty(t, diff(s))
}

func TestGetAfterDoneOpensTheWaveAgain(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": "1", "b": "1"})
	s.Get("a").WriteString("2") // adds to what this wave has written
	assert.Empty(t, diff(s))
	s.Done()
	// b may have been applied in between, or not.
	assert.Equal(t, []string{"created a=12 retry", "created b=1 retry"}, diff(s))
	describe(s, wants{"a": "12", "b": "1"})
	assert.Empty(t, diff(s))
}

func TestDeleteAfterDoneDoesNotForgetWhatMayHaveBeenApplied(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": "1"})
	s.Delete("a")
	s.Done()
	assert.Equal(t, []string{"deleted a=1 retry"}, diff(s))
}

func TestIterationEndsWhenTheDiffDoes(t *testing.T) {
	for name, end := range map[string]func(*store){
		"opened again":               func(s *store) { s.Get("c") },
		"opened and ended again":     func(s *store) { s.Get("c"); s.Done() },
		"next wave":                  func(s *store) { s.Reset() },
		"next wave that amends":      func(s *store) { s.Amend() },
		"next wave that has its own": func(s *store) { describe(s, wants{"x": "1", "y": "1"}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := diffstore.NewBufferStore[string]()
			describe(s, wants{"a": "1", "b": "1"})
			n := 0
			for range s.Created() {
				n++
				end(s)
			}
			assert.Equal(t, 1, n)
		})
	}
}

func TestAnUnfinishedWaveIsDiscarded(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": "1", "b": "1"})
	s.Reset()
	s.Get("a").WriteString("2")
	s.Get("c").WriteString("1")
	s.Delete("b")
	describe(s, wants{"a": "1", "b": "1"})
	assert.Empty(t, diff(s))
	describe(s, wants{})
	assert.Equal(t, []string{"deleted a=1", "deleted b=1"}, diff(s))
}

func TestAmendContinuesAnUnfinishedWave(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	s.Seed("x").WriteString("1")
	s.Amend() // the first wave describes everything, even if Amend begins it
	s.Get("a").WriteString("1")
	s.Amend()
	s.Get("a").WriteString("2")
	s.Done()
	assert.Equal(t, []string{"created a=12", "deleted x=1"}, diff(s))

	describe(s, wants{"a": "1", "b": "1"})
	s.Reset()
	s.Get("a").WriteString("1")
	s.Amend()
	s.Done()
	assert.Equal(t, []string{"deleted b=1"}, diff(s))
}

func TestAmendLeavesAlone(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": "1", "b": "1", "c": "1"})
	amend(s, wants{"b": "2", "c": "-", "unknown": "-"})
	assert.Equal(t, []string{"updated b=2 was 1", "deleted c=1"}, diff(s))
	amend(s, wants{})
	assert.Empty(t, diff(s))
	amend(s, wants{"a": "1", "c": "1"})
	assert.Equal(t, []string{"created c=1"}, diff(s))
	describe(s, wants{"a": "1"})
	assert.Equal(t, []string{"deleted b=2", "deleted c=1"}, diff(s))
}

func TestWantedIsWhatHasBeenDescribedSoFar(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	wanted := func(keys ...string) {
		t.Helper()
		for _, key := range []string{"a", "b", "c"} {
			leaf, ok := s.Wanted(key)
			require.Equal(t, slices.Contains(keys, key), ok, key)
			if ok {
				require.Equal(t, "value of "+key, leaf.String())
			}
		}
	}
	want := func(key string) { _, _ = s.Get(key).WriteString("value of " + key) }
	wanted()
	want("a")
	want("b")
	wanted("a", "b")
	s.Done()
	s.Amend()
	wanted("a", "b")
	s.Delete("a")
	want("c")
	wanted("b", "c")
	s.Done()
	s.Reset()
	wanted() // this wave has not described anything yet
	want("c")
	wanted("c")
	s.Amend()
	wanted("c") // which goes on with it
	s.Done()
	wanted("c")
}

func TestDeleteTakesBackGet(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": "1"})
	s.Reset()
	s.Get("a").WriteString("2")
	s.Delete("a")
	s.Get("b").WriteString("2")
	s.Delete("b")
	s.Get("b").WriteString("3") // begins anew
	s.Done()
	assert.Equal(t, []string{"created b=3", "deleted a=1"}, diff(s))
}

func TestForgetInAWave(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	describe(s, wants{"a": "1", "b": "1", "c": "1"})
	s.Amend()
	s.Forget()
	s.Seed("b").WriteString("1")
	s.Seed("c").WriteString("2")
	s.Seed("d").WriteString("1")
	s.Done()
	assert.Equal(t, []string{"created a=1", "updated c=1 was 2", "deleted d=1"}, diff(s))
	amend(s, wants{})
	assert.Empty(t, diff(s))
	amend(s, wants{"a": "2"})
	assert.Equal(t, []string{"updated a=2 was 1"}, diff(s))
}

// A wave must not alter the leaves of an earlier wave, although they share memory.
func TestLeavesAreReused(t *testing.T) {
	s := diffstore.NewBufferStore[string]()
	for _, value := range []string{"a long value", "short", "", "a long value", "a long"} {
		describe(s, wants{"a": value})
		for e := range s.Changed() {
			require.Equal(t, value, e.Value().String())
		}
		s.NotAppliedAll()
		describe(s, wants{"a": value})
		require.True(t, s.HasChanges())
	}
}

func TestAWaveWithoutChangeAllocatesNothing(t *testing.T) {
	s := diffstore.NewBufferStore[int]()
	wave := func() {
		s.Reset()
		for key := range 100 {
			s.Get(key).WriteString("the same in every wave")
		}
		s.Done()
		for range s.Changed() {
			t.Error("changed")
		}
	}
	s.Reset()
	for key := range 100 {
		s.Get(key).WriteString("the same in every wave")
	}
	s.Done()
	wave() // the second description of an entry allocates its second leaf's buffer
	assert.Zero(t, testing.AllocsPerRun(10, wave))
}
