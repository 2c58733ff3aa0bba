package diffstore

import (
	"cmp"
	"fmt"
)

// Change is what has to be done about an entry.
type Change uint8

const (
	Unchanged Change = iota // nothing: it exists with the wanted value, or neither exists nor is wanted
	Created                 // to be created: it is wanted and does not exist
	Updated                 // to be updated: it exists with another value
	Deleted                 // to be deleted: it exists and is not wanted
)

// String returns "unchanged", "created", "updated" or "deleted".
func (c Change) String() string {
	if c > Deleted {
		return fmt.Sprintf("Change(%d)", uint8(c))
	}
	return [...]string{"unchanged", "created", "updated", "deleted"}[c]
}

// Entry is a key of a [Store] with the wanted value and the value in the dataplane. The entry and its leaves are
// read-only, and valid until the store's next Reset or Amend.
//
// The flags, and the change that follows from them at Done:
//
//	want   exists  unsure   the key                                        change
//	true   false   any      is wanted and not there, as far as is known    Created
//	true   true    true     is wanted, and may be there with any value     Updated
//	true   true    false    is wanted and there                            Updated, or Unchanged if the values are equal
//	false  true    any      is there and not wanted                        Deleted
//	false  false   true     may be there, of a failed create               Deleted
//	false  false   false    is nowhere                                     Unchanged, and the store forgets it
//
// The calls that set the flags:
//
//	Get, Delete     want becomes true, false; a wave that describes everything makes it false of what it does not mention
//	Reset, Amend    an entry of the diff that is not settled has been applied: exists becomes want, unsure false
//	NotApplied      unsure becomes true, and the entry is settled
//	Rollback        the entry is settled: exists and unsure stay as they were
//	Seed, Forget    exists becomes true, false; unsure becomes false; the entry is settled
//
// An entry stays settled until the next Done. Store.queue has the settled entries and those that an amending wave
// mentions; that wave's Done looks only at these.
type Entry[K cmp.Ordered, L Leaf[L]] struct {
	key K
	// wanted is the last description, applied the last value that the dataplane is known to have held. With same,
	// applied is also what is wanted, and wanted may hold anything: the two are swapped when wanted is applied.
	wanted, applied L
	same            bool
	want            bool   // the last description has the key
	exists          bool   // the dataplane holds the key, with applied
	unsure          bool   // a later attempt to apply failed: the dataplane may hold something else, or nothing
	wave            uint64 // the wave that described it last
	change          Change // as of the last Done

	queued bool // is in Store.queue
	// settled: since the last comparison, Seed or a failure has reported what the dataplane holds, so that the next wave
	// does not consider the wanted value applied.
	settled bool
}

// Key returns the key.
func (e *Entry[K, L]) Key() K { return e.key }

// Change returns what has to be done about the entry.
func (e *Entry[K, L]) Change() Change { return e.change }

// Value returns what is wanted. For an entry that is to be deleted it returns what the dataplane holds; if that is not
// known, because an attempt to create the entry failed, it returns the value of that attempt.
func (e *Entry[K, L]) Value() L {
	if e.same || !e.want && e.exists {
		return e.applied
	}
	return e.wanted
}

// Applied returns the value that was last applied or seeded. It returns false if there is none: the entry is to be
// created, or is deleted after a failed attempt to create it.
func (e *Entry[K, L]) Applied() (L, bool) {
	if !e.exists {
		return *new(L), false
	}
	return e.applied, true
}

// Retry reports whether an earlier attempt to apply the entry failed ([Store.NotApplied]), so that the dataplane may
// hold anything under its key, or nothing.
func (e *Entry[K, L]) Retry() bool { return e.unsure }

// compare decides what has to be done about the entry.
func (e *Entry[K, L]) compare() Change {
	switch {
	case e.want && !e.exists:
		return Created
	case e.want && (e.unsure || !e.same && !e.wanted.Equal(e.applied)):
		return Updated
	case e.want:
		return Unchanged
	case e.exists || e.unsure:
		return Deleted
	}
	return Unchanged
}

// take records that the dataplane holds what is wanted.
func (e *Entry[K, L]) take() {
	if !e.same {
		e.wanted, e.applied = e.applied, e.wanted
	}
	e.same, e.exists, e.unsure = true, true, false
}
