package diffstore

// NotApplied reports that applying a key failed, and that it is not known what the dataplane holds under it: the old
// value, the new one, half of it or nothing. From the next diff on, the key is in every diff until it has been applied.
// The key need not be in the current diff. If the store does not know the key, it assumes that the dataplane may hold
// it.
func (s *Store[K, L]) NotApplied(key K) {
	e := s.entry(key)
	e.unsure = true
	s.settle(e)
}

// NotAppliedAll calls NotApplied for every entry of the diff.
func (s *Store[K, L]) NotAppliedAll() {
	for _, e := range s.diff {
		e.unsure = true
		s.settle(e)
	}
}

// Rollback reports that nothing of the diff has been applied, because a transaction failed, and that the dataplane is
// unchanged. The next wave is compared with that.
func (s *Store[K, L]) Rollback() {
	for _, e := range s.diff {
		s.settle(e)
	}
}

// Seed reports that the dataplane holds a key, and returns an empty leaf for its value, to be filled before Done. It
// replaces the value that the store had recorded for the dataplane. It does not make the key wanted: Get does.
//
// After Done it reports the current value in the dataplane, in place of the result of the diff.
func (s *Store[K, L]) Seed(key K) L {
	e := s.entry(key)
	if e.same { // applied is also the wanted value: keep it
		e.wanted, e.applied, e.same = e.applied, e.wanted, false
	}
	e.applied.Reset()
	e.exists, e.unsure = true, false
	s.settle(e)
	return e.applied
}

// Forget reports that the dataplane holds nothing. Call it before Seed when the dataplane is read again.
func (s *Store[K, L]) Forget() {
	for _, e := range s.entries {
		e.exists, e.unsure = false, false
		s.settle(e)
	}
}

// settle records that the caller has reported what the dataplane holds, so that the next wave compares the entry
// instead of considering it applied.
func (s *Store[K, L]) settle(e *Entry[K, L]) {
	s.enqueue(e)
	e.settled = true
}
