package conntrack

import "iter"

// portSet is a set of ports with constant-time operations. Nearly always it has one port, and then needs no further
// memory. The zero value is empty.
type portSet struct {
	one  *udpPort
	more map[*udpPort]struct{} // without one
}

func (s portSet) len() int {
	if s.one == nil {
		return len(s.more)
	}
	return 1 + len(s.more)
}

func (s portSet) has(p *udpPort) bool {
	_, has := s.more[p]
	return has || s.one == p
}

func (s portSet) all() iter.Seq[*udpPort] {
	return func(yield func(*udpPort) bool) {
		if s.one != nil && !yield(s.one) {
			return
		}
		for p := range s.more {
			if !yield(p) {
				return
			}
		}
	}
}

// join adds a port to the set of a key.
func join[K comparable](sets map[K]portSet, key K, p *udpPort) {
	s := sets[key]
	switch {
	case s.has(p):
		return
	case s.one == nil:
		s.one = p
	default:
		if s.more == nil {
			s.more = map[*udpPort]struct{}{}
		}
		s.more[p] = struct{}{}
	}
	sets[key] = s
}

// leave removes a port from the set of a key, and the set if it is empty.
func leave[K comparable](sets map[K]portSet, key K, p *udpPort) {
	s := sets[key]
	if s.one == p {
		s.one = nil
	} else {
		delete(s.more, p)
	}
	if s.len() == 0 {
		delete(sets, key)
		return
	}
	sets[key] = s
}
