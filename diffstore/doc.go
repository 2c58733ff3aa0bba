// Package diffstore finds what changed between two descriptions of the same thing. It is for backends that prefer to
// describe everything that their dataplane should hold to processing single changes. They do so in waves, and the
// [Store] computes what has to be created, updated and deleted. KEP-2104 describes such a store.
//
// # A wave
//
// The caller calls [Store.Get] for every key that is wanted, and fills its leaf. [Store.Done] ends the description and
// compares. [Store.Created], [Store.Updated], [Store.Changed] (both) and [Store.Deleted] then return what is left to
// do, in key order. [Store.Reset] considers that applied and begins the next wave. There are leaves for text and
// for values of any type; other types need the two methods of [Leaf].
//
// Values are compared, not hashes of them, so no change is ever missed.
//
// # When applying fails
//
// The store compares with what the dataplane holds, not with what was wanted last. A caller that could not apply an
// entry reports that before Reset. The entry is then in the next diff, whether its value changes again or not:
//
//   - [Store.NotApplied] for one entry that may have been applied, wholly, partly or not at all.
//   - [Store.NotAppliedAll] for all entries of a wave.
//   - [Store.Rollback] for a transaction that failed as a whole and left everything as it was.
//
// After NotApplied the dataplane may hold anything under that key, so the entry stays in the diff until it has been
// applied, even if its previous value is wanted again. [Entry.Retry] marks such entries. They are:
//
//	what failed   wanted in the next wave                     not wanted in the next wave
//	a create      created                                     deleted: it may exist
//	an update     updated, even to the value it had before    deleted
//	a delete      updated: it may still exist                 deleted, again
//
// So such an entry has to be applied in a way that works whether the key exists or not: create or replace, and delete
// without an error if the key does not exist.
//
// # Restarts
//
// A new process finds the dataplane as an earlier one left it. [Store.Seed] tells the store what is there, so the diff
// has only what differs, deletions included. To read the dataplane again later, call [Store.Forget], then Seed.
//
// # Cost
//
// A wave that describes everything costs a lookup and a comparison for each key, and no allocation for an entry that
// stays the same. [Store.Amend] begins a wave that costs only what it mentions: all other keys stay unchanged.
//
// # What it never does
//
// It does not touch a dataplane, start goroutines, log or panic. A store is not safe for concurrent use.
package diffstore
