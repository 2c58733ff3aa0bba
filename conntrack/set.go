package conntrack

import "iter"

// set is a set with constant-time operations. Nearly always it has one element, and then needs no further memory. The
// zero value is empty.
type set[E any] struct {
	one  *E
	more map[*E]struct{} // without one
}

// portSet is a set of ports.
type portSet = set[udpPort]

func (s set[E]) len() int {
	if s.one == nil {
		return len(s.more)
	}
	return 1 + len(s.more)
}

func (s set[E]) has(e *E) bool {
	_, has := s.more[e]
	return has || s.one == e
}

func (s set[E]) all() iter.Seq[*E] {
	return func(yield func(*E) bool) {
		if s.one != nil && !yield(s.one) {
			return
		}
		for e := range s.more {
			if !yield(e) {
				return
			}
		}
	}
}

// join adds an element to the set of a key.
func join[K comparable, E any](sets map[K]set[E], key K, e *E) {
	s := sets[key]
	switch {
	case s.has(e):
		return
	case s.one == nil:
		s.one = e
	default:
		if s.more == nil {
			s.more = map[*E]struct{}{}
		}
		s.more[e] = struct{}{}
	}
	sets[key] = s
}

// leave removes an element from the set of a key, and the set if it is empty.
func leave[K comparable, E any](sets map[K]set[E], key K, e *E) {
	s := sets[key]
	if s.one == e {
		s.one = nil
	} else {
		delete(s.more, e)
	}
	if s.len() == 0 {
		delete(sets, key)
		return
	}
	sets[key] = s
}
