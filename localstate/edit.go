package localstate

import "slices"

// edit is a change of a sorted list: it removes the element at a place, inserts a value before it, or does both, which
// replaces the element.
type edit[T any] struct {
	at               int
	removes, inserts bool
	value            T
}

// copyBelow is the length up to which a list whose length changes is reallocated in exactly the size that it needs.
const copyBelow = 256

// applyEdits returns the list with the edits applied. The edits are in the order of their places, insertions before a
// place preceding its removal; places refer to the original list. applyEdits writes to the list's memory. Each element
// moves at most twice, however many edits there are.
func applyEdits[T any](list []T, edits []edit[T]) []T {
	removed, inserted := 0, 0
	for _, e := range edits {
		switch {
		case e.removes && e.inserts:
			list[e.at] = e.value
		case e.removes:
			removed++
		case e.inserts:
			inserted++
		}
	}
	if removed == 0 && inserted == 0 {
		return list
	}
	size := len(list) - removed + inserted
	if len(list) == 0 || size < copyBelow {
		return rebuild(list, edits, size)
	}

	// Close the gaps from the front, then open new ones from the back.
	end, gaps := len(list), 0
	for i, e := range edits {
		if e.inserts || !e.removes {
			continue
		}
		next := end
		for _, later := range edits[i+1:] {
			if later.removes && !later.inserts {
				next = later.at
				break
			}
		}
		copy(list[e.at-gaps:], list[e.at+1:next])
		gaps++
	}
	clear(list[end-gaps:])
	list = slices.Grow(list[:end-gaps], inserted)
	tail := len(list)
	list = list[:size]
	left := removed // removals before the current edit
	for _, e := range slices.Backward(edits) {
		switch {
		case e.removes && e.inserts:
		case e.removes:
			left--
		case e.inserts:
			at := e.at - left
			copy(list[at+inserted:], list[at:tail])
			inserted--
			list[at+inserted] = e.value
			tail = at
		}
	}
	return list
}

// rebuild returns a new list. Replacements have already been made.
func rebuild[T any](list []T, edits []edit[T], size int) []T {
	if size == 0 {
		return nil
	}
	fresh := make([]T, 0, size)
	from := 0
	for _, e := range edits {
		if e.removes && e.inserts {
			continue
		}
		fresh = append(fresh, list[from:e.at]...)
		from = e.at
		if e.inserts {
			fresh = append(fresh, e.value)
		} else {
			from++
		}
	}
	return append(fresh, list[from:]...)
}
