// Package persistent has an immutable map whose versions share what they have in common, so that a change costs what it
// changes, and so does the difference between two versions.
package persistent

import (
	"iter"
	"slices"
)

// Map is an immutable, ordered map. The zero Map is empty. It may be copied, and read by any goroutine. The zero value
// of V stands for a key that the map does not have.
//
// It is an AVL tree, which takes about as much memory as a Go map. Its depth is at most 1.44 log2 of its size, whoever
// chooses the keys.
type Map[K Key[K], V comparable] struct{ root *node[K, V] }

// Key is the type of keys. Compare returns 0 only for keys that are equal.
type Key[K any] interface{ Compare(other K) int }

// Entry is a key with its value.
type Entry[K Key[K], V comparable] struct {
	Key   K
	Value V
}

// node is immutable. A nil node is empty.
type node[K Key[K], V comparable] struct {
	Entry[K, V]
	left, right *node[K, V]
	height      int
}

// IsEmpty reports whether the map has no keys.
func (m Map[K, V]) IsEmpty() bool { return m.root == nil }

// Get returns the value of a key, or the zero value.
func (m Map[K, V]) Get(key K) (value V) {
	for n := m.root; n != nil; {
		switch c := key.Compare(n.Key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.Value
		}
	}
	return value
}

// All yields the entries in the order of their keys.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.all(yield) }
}

func (n *node[K, V]) all(yield func(K, V) bool) bool {
	return n == nil || n.left.all(yield) && yield(n.Key, n.Value) && n.right.all(yield)
}

// With returns a copy with changes, which have to be sorted by key, each key once; the zero value removes one. It takes
// O(d log(n/d + 1)) time and memory for d changes of n entries.
func (m Map[K, V]) With(changes []Entry[K, V]) Map[K, V] { return Map[K, V]{m.root.with(changes)} }

func (n *node[K, V]) with(changes []Entry[K, V]) *node[K, V] {
	if len(changes) == 0 {
		return n
	}
	if n == nil {
		middle := len(changes) / 2
		return joinAround(n.with(changes[:middle]), changes[middle], n.with(changes[middle+1:]))
	}
	at, found := slices.BinarySearchFunc(changes, n.Key, func(e Entry[K, V], key K) int { return e.Key.Compare(key) })
	now, rest := n.Entry, changes[at:]
	if found {
		now.Value, rest = rest[0].Value, rest[1:]
	}
	left, right := n.left.with(changes[:at]), n.right.with(rest)
	if left == n.left && right == n.right && now.Value == n.Value {
		return n
	}
	return joinAround(left, now, right)
}

// joinAround returns the tree of two others and of an entry between them, if it has a value.
func joinAround[K Key[K], V comparable](left *node[K, V], e Entry[K, V], right *node[K, V]) *node[K, V] {
	switch {
	case e.Value != *new(V):
		return join(left, e, right)
	case left == nil:
		return right
	}
	rest, last := left.withoutLast()
	return join(rest, last, right)
}

func (n *node[K, V]) withoutLast() (rest *node[K, V], last Entry[K, V]) {
	if n.right == nil {
		return n.left, n.Entry
	}
	rest, last = n.right.withoutLast()
	return join(n.left, n.Entry, rest), last
}

// join returns the tree of two others and of an entry between them. Its cost is the difference of their heights. See
// Blelloch, Ferizovic and Sun, "Just Join for Parallel Ordered Sets".
func join[K Key[K], V comparable](left *node[K, V], e Entry[K, V], right *node[K, V]) *node[K, V] {
	switch l, r := left.depth(), right.depth(); {
	case l > r+1:
		return balanced(left.left, left.Entry, join(left.right, e, right))
	case r > l+1:
		return balanced(join(left, e, right.left), right.Entry, right.right)
	}
	return newNode(left, e, right)
}

// balanced is newNode for trees whose heights differ by up to two: it rotates where they do.
func balanced[K Key[K], V comparable](left *node[K, V], e Entry[K, V], right *node[K, V]) *node[K, V] {
	switch l, r := left.depth(), right.depth(); {
	case l > r+1 && left.left.depth() >= left.right.depth():
		return newNode(left.left, left.Entry, newNode(left.right, e, right))
	case l > r+1:
		inner := left.right
		return newNode(newNode(left.left, left.Entry, inner.left), inner.Entry, newNode(inner.right, e, right))
	case r > l+1 && right.right.depth() >= right.left.depth():
		return newNode(newNode(left, e, right.left), right.Entry, right.right)
	case r > l+1:
		inner := right.left
		return newNode(newNode(left, e, inner.left), inner.Entry, newNode(inner.right, right.Entry, right.right))
	}
	return newNode(left, e, right)
}

func newNode[K Key[K], V comparable](left *node[K, V], e Entry[K, V], right *node[K, V]) *node[K, V] {
	return &node[K, V]{Entry: e, left: left, right: right, height: 1 + max(left.depth(), right.depth())}
}

func (n *node[K, V]) depth() int {
	if n == nil {
		return 0
	}
	return n.height
}
