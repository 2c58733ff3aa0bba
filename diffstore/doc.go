// Package diffstore tells what changed between two descriptions of the same thing. A backend that finds it easier to
// write down everything that its dataplane should hold than to follow every single change does so in waves, and the
// [Store] works out what has to be created, updated and deleted. It is the store that KEP-2104 describes.
//
// # A wave
//
// [Store.Get] is called for every key that is wanted, and its leaf is filled; [Store.Done] ends the description and
// compares; [Store.Created], [Store.Updated], [Store.Changed] (both) and [Store.Deleted] are what is left to do, in key
// order; [Store.Reset] considers it applied and begins the next wave. There are leaves for text, for values of any type
// and for values with a JSON form; your own type needs the two methods of [Leaf].
//
// Values themselves are compared, not hashes of them, so that no change is ever missed.
//
// # When applying fails
//
// The store compares with what the dataplane holds, not with what was wanted last. A caller that could not apply an
// entry says so before Reset. The entry is then in the next diff, whether its value changes again or not:
//
//   - [Store.NotApplied] for one entry whose fate is not known: it may have happened, or half of it.
//   - [Store.NotAppliedAll] for a whole wave of which that is so.
//   - [Store.Rollback] for a transaction that failed as a whole and left everything as it was.
//
// After NotApplied the dataplane may hold anything under that key, so the entry stays in the diff until it has been
// applied, also if what is wanted goes back to what was there before. [Entry.Retry] tells such entries apart. They are:
//
//	what failed   wanted in the next wave                     not wanted in the next wave
//	a create      created                                     deleted: it may be there
//	an update     updated, even to the value it had before    deleted
//	a delete      updated: it may still be there              deleted, again
//
// So an entry that is a Retry has to be applied in a way that works whether its key exists or not: create or replace,
// and delete without complaint about what is gone.
//
// # What the dataplane holds at the start
//
// A new process finds the dataplane as an earlier one left it. [Store.Seed] tells the store, which then asks only for
// what differs, deletions included. To read the dataplane again later, call [Store.Forget], then Seed.
//
// # Cost
//
// A wave that describes everything costs what it describes: a lookup and a comparison for each key, and no allocation
// for an entry that stays the same. [Store.Amend] begins a wave that costs only what it mentions: all other keys stay
// as they are.
//
// # What it never does
//
// It does not touch a dataplane, start goroutines, log or panic. A store is not safe for concurrent use.
package diffstore
