package diffstore

import (
	"cmp"
	"iter"
	"slices"
)

// Store records what is wanted and what the dataplane holds, by key, and computes the difference. See the package's
// documentation for its use. Create one with [New] or with the constructor for a kind of leaf. It is not safe for
// concurrent use. A floating-point NaN cannot be a key.
type Store[K cmp.Ordered, L Leaf[L]] struct {
	newLeaf func() L
	entries map[K]*Entry[K, L]
	// queue has the entries that Done has to look at in a wave that does not describe everything.
	queue []*Entry[K, L]
	diff  []*Entry[K, L] // as of Done, ordered by key
	wave  uint64         // the number of the wave
	whole bool           // the wave describes everything: what it does not mention is not wanted
	done  bool           // the wave has been described and compared
	diffs uint64         // counts calls of Done, so that an iterator notices that its diff is not the current one
}

// New returns an empty store in its first wave. newLeaf returns a new, empty leaf.
func New[K cmp.Ordered, L Leaf[L]](newLeaf func() L) *Store[K, L] {
	return &Store[K, L]{newLeaf: newLeaf, entries: map[K]*Entry[K, L]{}, wave: 1, whole: true}
}

// Get makes a key wanted, and returns the leaf for its value. The first call for a key in a wave returns an empty leaf,
// later ones the same leaf with its content. Do not write to the leaf after Done.
//
// After Done, Get reopens the wave: there is no diff until Done is called once more. Since some of the diff may have
// been applied in between, all of it counts as NotApplied.
func (s *Store[K, L]) Get(key K) L {
	e := s.entry(key)
	s.open(e)
	if e.wave != s.wave {
		e.wave = s.wave
		e.wanted.Reset()
	}
	e.want, e.same = true, false
	return e.wanted
}

// Delete makes a key unwanted. In a wave that describes everything it undoes a Get; in one that Amend began it removes
// the key. An unknown key is not an error. After Done, Delete reopens the wave, like Get.
func (s *Store[K, L]) Delete(key K) {
	if e := s.entries[key]; e != nil {
		s.open(e)
		e.want, e.wave = false, s.wave-1 // a later Get begins with an empty leaf
	}
}

// Wanted returns the leaf of a key, as described so far, and whether the key is wanted. Do not write to the leaf.
func (s *Store[K, L]) Wanted(key K) (leaf L, wanted bool) {
	e := s.entries[key]
	if e == nil || !e.want || s.whole && e.wave != s.wave {
		return leaf, false
	}
	return e.Value(), true
}

// open records that the wave mentions an entry.
func (s *Store[K, L]) open(e *Entry[K, L]) {
	if s.done {
		s.NotAppliedAll()
		s.close()
	}
	if !s.whole {
		s.enqueue(e)
	}
}

// close ends the diff.
func (s *Store[K, L]) close() {
	clear(s.diff)
	s.diff, s.done = s.diff[:0], false
}

func (s *Store[K, L]) entry(key K) *Entry[K, L] {
	e := s.entries[key]
	if e == nil {
		e = &Entry[K, L]{key: key, wanted: s.newLeaf(), applied: s.newLeaf()}
		s.entries[key] = e
	}
	return e
}

func (s *Store[K, L]) enqueue(e *Entry[K, L]) {
	if !e.queued {
		e.queued = true
		s.queue = append(s.queue, e)
	}
}

// Done ends the description of a wave and compares it with what the dataplane holds.
func (s *Store[K, L]) Done() {
	s.close()
	if s.whole {
		for _, e := range s.entries {
			if e.wave != s.wave {
				e.want = false
			}
			s.compare(e)
		}
	} else {
		for _, e := range s.queue {
			s.compare(e)
		}
	}
	slices.SortFunc(s.diff, func(a, b *Entry[K, L]) int { return cmp.Compare(a.key, b.key) })
	s.done = true
	s.diffs++
}

func (s *Store[K, L]) compare(e *Entry[K, L]) {
	e.settled = false
	e.change = e.compare()
	switch {
	case e.change != Unchanged:
		s.diff = append(s.diff, e)
	case !e.want: // neither wanted nor present
		s.drop(e)
	}
}

// drop forgets an entry, unless its key has a new one by now.
func (s *Store[K, L]) drop(e *Entry[K, L]) {
	if s.entries[e.key] == e {
		delete(s.entries, e.key)
	}
}

// HasChanges reports whether there is anything to create, update or delete. It is false until Done has been called.
func (s *Store[K, L]) HasChanges() bool { return len(s.diff) > 0 }

// Created returns the entries that are wanted and do not exist, ordered by key.
func (s *Store[K, L]) Created() iter.Seq[*Entry[K, L]] { return s.changes(Created) }

// Updated returns the entries that exist with a value other than the wanted one, ordered by key.
func (s *Store[K, L]) Updated() iter.Seq[*Entry[K, L]] { return s.changes(Updated) }

// Changed returns the entries that are created or updated, ordered by key.
func (s *Store[K, L]) Changed() iter.Seq[*Entry[K, L]] { return s.changes(Created, Updated) }

// Deleted returns the entries that exist and are not wanted, ordered by key.
func (s *Store[K, L]) Deleted() iter.Seq[*Entry[K, L]] { return s.changes(Deleted) }

// changes iterates over a part of the diff. It ends early if the diff does.
func (s *Store[K, L]) changes(kinds ...Change) iter.Seq[*Entry[K, L]] {
	return func(yield func(*Entry[K, L]) bool) {
		current := s.diffs
		for i := 0; s.diffs == current && i < len(s.diff); i++ {
			if e := s.diff[i]; slices.Contains(kinds, e.change) && !yield(e) {
				return
			}
		}
	}
}

// Reset considers the diff applied, except where NotApplied, NotAppliedAll, Rollback, Seed or Forget reported otherwise
// since Done, and begins a wave that describes everything: what it does not mention is no longer wanted. If the current
// wave has not been ended with Done, it is discarded.
func (s *Store[K, L]) Reset() {
	s.next()
	s.whole = true
}

// Amend considers the diff applied as Reset does, and begins a wave that changes the last one: only the keys that Get
// and Delete mention are described again, all others stay unchanged, at no cost. What has not been applied is in the
// next diff, mentioned or not. If the current wave has not been ended with Done, it continues.
func (s *Store[K, L]) Amend() {
	if s.done {
		s.next()
		s.whole = false
	}
}

// next considers the diff applied and begins a new wave.
func (s *Store[K, L]) next() {
	if s.done {
		for _, e := range s.diff {
			switch {
			case e.settled:
			case e.want:
				e.take()
			default:
				s.drop(e)
			}
		}
		unsettled := func(e *Entry[K, L]) bool {
			e.queued = e.settled
			return !e.queued
		}
		s.queue = slices.DeleteFunc(s.queue, unsettled)
	}
	s.close()
	s.wave++
}
