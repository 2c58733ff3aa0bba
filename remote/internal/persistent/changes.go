package persistent

import "iter"

// ChangesSince yields the keys whose values differ in another map, with the values in m, in the order of the keys. It
// skips what the two share: d changes of a map of n entries take O(d log n) time. Maps that do not descend from each
// other are compared as a whole.
func (m Map[K, V]) ChangesSince(other Map[K, V]) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		var room [2][32]step[K, V] // on the stack; walks through more than some thousand entries may outgrow it
		before, now := walk[K, V](room[0][:0]), walk[K, V](room[1][:0])
		before.push(other.root)
		now.push(m.root)
		for len(before)+len(now) > 0 {
			b, n := before.top(), now.top()
			switch {
			case b.whole && n.whole && b.node == n.node:
				before.pop()
				now.pop()
				continue
			case b.height() > 0 && b.height() >= n.height():
				before.open()
				continue
			case n.height() > 0:
				now.open()
				continue
			}
			// The next entry on both sides.
			var order int
			switch {
			case b.node == nil:
				order = 1
			case n.node == nil:
				order = -1
			default:
				order = b.node.Key.Compare(n.node.Key)
			}
			var was, is V
			key := n.node
			if order <= 0 {
				was, key = b.node.Value, b.node
				before.pop()
			}
			if order >= 0 {
				is, key = n.node.Value, n.node
				now.pop()
			}
			if was != is && !yield(key.Key, is) {
				return
			}
		}
	}
}

// step is what comes next in a walk: a whole tree, or the entry of its root alone. The zero step is the end.
type step[K Key[K], V comparable] struct {
	node  *node[K, V]
	whole bool
}

// height is that of a whole tree, 0 for an entry.
func (s step[K, V]) height() int {
	if !s.whole {
		return 0
	}
	return s.node.height
}

// walk goes through a tree in order. The last step comes next.
type walk[K Key[K], V comparable] []step[K, V]

func (w *walk[K, V]) push(n *node[K, V]) {
	if n != nil {
		*w = append(*w, step[K, V]{n, true})
	}
}

func (w walk[K, V]) top() (s step[K, V]) {
	if len(w) > 0 {
		s = w[len(w)-1]
	}
	return s
}

func (w *walk[K, V]) pop() { *w = (*w)[:len(*w)-1] }

// open replaces the tree that comes next with its parts.
func (w *walk[K, V]) open() {
	n := w.top().node
	w.pop()
	w.push(n.right)
	*w = append(*w, step[K, V]{n, false})
	w.push(n.left)
}
