package frontend

// RefCounts counts the users of things that a dataplane has once, however many service ports need them: a flow for each
// endpoint, say, or an object for each backend address. A thing that is not in the map has no users. The zero value is
// empty and ready to use. It is not safe for concurrent use.
//
// Count what the dataplane has, not what is wanted: call Add before a port is written, and Remove after what used the
// thing is gone, so that nothing is removed that a refused port still uses.
type RefCounts[K comparable] map[K]int

// Add counts another user, and reports whether it is the first; if so, the object has to be created.
func (r *RefCounts[K]) Add(k K) (first bool) {
	if *r == nil {
		*r = RefCounts[K]{}
	}
	(*r)[k]++
	return (*r)[k] == 1
}

// Remove drops one user and reports whether it was the last; if so, the object may go. If there are no users, it does
// nothing and returns false.
func (r RefCounts[K]) Remove(k K) (last bool) {
	switch r[k] {
	case 0:
		return false
	case 1:
		delete(r, k)
		return true
	}
	r[k]--
	return false
}
