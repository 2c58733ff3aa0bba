package diffstore

// NotApplied says that applying a key failed, and that what the dataplane holds under it is not known: the old value,
// the new one, half of it or nothing. The key is in every diff from the next one on until it has been applied. It may
// be any key, also one that is not in the diff: of one that the store does not know it is taken that the dataplane may
// hold it.
func (s *Store[K, L]) NotApplied(key K) {
	e := s.entry(key)
	e.unsure = true
	s.settle(e)
}

// NotAppliedAll says of every entry of the diff what NotApplied says of one.
func (s *Store[K, L]) NotAppliedAll() {
	for _, e := range s.diff {
		e.unsure = true
		s.settle(e)
	}
}

// Rollback says that nothing of the diff has been applied, and that the dataplane holds what it held before: a
// transaction failed. The next wave is compared with that again.
func (s *Store[K, L]) Rollback() {
	for _, e := range s.diff {
		s.settle(e)
	}
}

// Seed says that the dataplane holds a key, and returns an empty leaf to describe its value with, before Done. It
// replaces all that was known of the key's value in the dataplane; whether the key is wanted is for Get to say.
//
// After Done it says what the dataplane holds now, instead of what the diff would have made of it.
func (s *Store[K, L]) Seed(key K) L {
	e := s.entry(key)
	if e.same { // applied stands for what is wanted, too: keep it
		e.wanted, e.applied, e.same = e.applied, e.wanted, false
	}
	e.applied.Reset()
	e.exists, e.unsure = true, false
	s.settle(e)
	return e.applied
}

// Forget says that the dataplane holds nothing. Call it before Seed when the dataplane is read again.
func (s *Store[K, L]) Forget() {
	for _, e := range s.entries {
		e.exists, e.unsure = false, false
		s.settle(e)
	}
}

// settle notes that something has been said about what the dataplane holds, so that the next wave looks at the entry
// and does not begin with taking it for applied.
func (s *Store[K, L]) settle(e *Entry[K, L]) {
	s.enqueue(e)
	e.settled = true
}
