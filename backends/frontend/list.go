package frontend

import "slices"

// list is a list whose elements are found by their keys: by a linear scan while they are few, otherwise by an index.
type list[K comparable, V interface{ key() K }] struct {
	all   []V
	index map[K]int32 // into all; nil while they are few
}

// maxScan is the number of elements up to which the list is scanned without an index.
const maxScan = 32

// find returns the index of an element, or -1.
func (l *list[K, V]) find(k K) int {
	if l.index != nil {
		if i, ok := l.index[k]; ok {
			return int(i)
		}
		return -1
	}
	return slices.IndexFunc(l.all, func(v V) bool { return v.key() == k })
}

// add appends an element and returns its index.
func (l *list[K, V]) add(v V) int {
	i := len(l.all)
	l.all = append(l.all, v)
	switch {
	case l.index != nil:
		l.index[v.key()] = int32(i)
	case len(l.all) > maxScan:
		l.index = make(map[K]int32, 2*len(l.all))
		for j := range l.all {
			l.index[l.all[j].key()] = int32(j)
		}
	}
	return i
}

// remove removes an element; the last one takes its place.
func (l *list[K, V]) remove(i int) {
	last := len(l.all) - 1
	if last == 0 {
		*l = list[K, V]{}
		return
	}
	if l.index != nil {
		delete(l.index, l.all[i].key())
		if i != last {
			l.index[l.all[last].key()] = int32(i)
		}
	}
	l.all[i] = l.all[last]
	clear(l.all[last:])
	l.all = l.all[:last]
}
