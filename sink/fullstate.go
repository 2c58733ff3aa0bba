package sink

import "context"

// FullState is a [Sink] that hands a callback the full state, as a [Snapshot], where other sinks are told every change.
// It is a [NodeSetter] and a [Resyncer] too.
//
// # When the callback is called
//
// Sync calls it once, from Sync's goroutine and with its context, if
//
//   - anything is different from the last snapshot: the node, a service or an endpoint, compared by value; or
//   - the last call of it failed; or
//   - a resync is asked for, with ForceResync, or because it has not succeeded yet. [Snapshot.FullResync] says so, and
//     goes on to say so until the callback has succeeded.
//
// Otherwise Sync returns nil at once. Every call gets a new snapshot. Sync returns what the callback returns.
//
// # Applying changes only
//
// A callback that succeeds remembers the snapshot, and the next time asks for [Snapshot.ChangesSince] that one. One that
// fails does not, and loses nothing: the changes since the snapshot that it remembers have all that failed, and what
// came later.
//
// # Calls that do not keep the contract
//
// A nil service or endpoint is ignored. Endpoints of a service that is not set, never or no longer, are held back: they
// are in the snapshots from when the service is set, and a log line names them. Endpoints of a port that their
// service does not have are in the snapshots like others.
type FullState struct {
	state
	callback func(context.Context, *Snapshot) error
	resync   bool
	failed   bool
}

var (
	_ Sink       = (*FullState)(nil)
	_ NodeSetter = (*FullState)(nil)
	_ Resyncer   = (*FullState)(nil)
)

// NewFullState returns a Sink that calls back with a snapshot at every Sync that has something to do.
func NewFullState(callback func(ctx context.Context, s *Snapshot) error) *FullState {
	return &FullState{state: newState(), callback: callback, resync: true}
}

// ForceResync implements [Resyncer]: the next Sync calls back, with a snapshot that asks for a full resync.
func (f *FullState) ForceResync() { f.resync = true }

// Sync implements [Sink].
func (f *FullState) Sync(ctx context.Context) error {
	if changed := f.apply(ctx); !changed && !f.failed && !f.resync {
		return nil
	}
	err := f.callback(ctx, f.snapshot(f.resync))
	f.failed = err != nil
	f.resync = f.resync && f.failed
	return err
}
