package sink

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// FullState is a [Sink] that passes the full state to a callback, as a [Snapshot]. It is a [NodeSetter], a [Resyncer]
// and a [FailureResyncer] too.
//
// # When the callback is called
//
// Sync calls it once, from Sync's goroutine and with its context, if
//
//   - anything differs from the last snapshot: the node, a service or an endpoint, compared by value; or
//   - its last call failed; or
//   - the Sync was asked for by Options.SyncRequests of the root package; or
//   - a resync has been requested by ForceResync, or has not succeeded yet.
//
// Otherwise Sync returns nil at once. Every call gets a new snapshot. Sync returns what the callback returns.
//
// # Resyncs and failures
//
// [Snapshot.FullResyncOf] says for which families a full resync is requested, until the callback has succeeded for that
// family, as judged by [FailedFamilies]. If changes arrive between a failure and its retry, the callback is called with
// [Snapshot.RetryDue] not set. It may then leave alone what failed, and return its error again. If it does try, and
// FullResyncOf is set, only a full resync counts as a success.
//
// # Applying changes only
//
// A callback that succeeds should remember the snapshot, and call [Snapshot.ChangesSince] with it the next time. If it
// fails it should not remember the snapshot: the changes since the last remembered one then include what failed and
// what came later, so nothing is lost.
//
// # Calls that violate the contract
//
// A nil service or endpoint is ignored. Endpoints of a service that is not set are held back, with a log line that
// names the service: they are in the snapshots as soon as the service is set. Endpoints of a port that their service
// does not have are in the snapshots like others.
type FullState struct {
	state
	callback func(context.Context, *Snapshot) error
	resync   resync // of the next call
	err      error  // of the last call
}

// resync says which part of its record of the dataplane a callback must not trust.
type resync struct {
	families model.FamilySet // a full resync of them is asked for
	retryDue bool
}

var (
	_ Sink            = (*FullState)(nil)
	_ NodeSetter      = (*FullState)(nil)
	_ Resyncer        = (*FullState)(nil)
	_ FailureResyncer = (*FullState)(nil)
)

// NewFullState returns a Sink that calls callback with a snapshot at every Sync that has something to do. With a nil
// callback it does nothing.
func NewFullState(callback func(ctx context.Context, s *Snapshot) error) *FullState {
	f := &FullState{state: newState(), callback: callback}
	f.ForceResync()
	return f
}

// NewFullStateFrom is [NewFullState] with the content of a snapshot as the initial state. It shares memory with the
// snapshot, so that its cost does not depend on the size. Later changes do not affect the snapshot.
func NewFullStateFrom(s *Snapshot, callback func(ctx context.Context, s *Snapshot) error) *FullState {
	f := NewFullState(callback)
	if services := s.services; services.Len() > 0 {
		f.tree, f.endpoints = services.Copy(), s.endpoints
	}
	f.node, f.appliedNode = s.node, s.node
	return f
}

// ForceResync implements [Resyncer]: the next Sync calls back, with a snapshot that asks for a full resync.
func (f *FullState) ForceResync() { f.resync = resync{families: model.BothFamilies, retryDue: true} }

// ResyncFailed implements [FailureResyncer]: if the last call of the callback failed, the next snapshot asks for a full
// resync of the families that failed.
func (f *FullState) ResyncFailed() {
	f.resync.families |= FailedFamilies(f.err)
	f.resync.retryDue = f.resync.retryDue || f.err != nil
}

// Sync implements [Sink].
func (f *FullState) Sync(ctx context.Context) error {
	if changed := f.apply(ctx); !changed && f.err == nil && f.resync == (resync{}) && !syncing.IsRequested(ctx) {
		return nil
	}
	if f.callback == nil {
		f.resync = resync{}
		return nil
	}
	f.err = f.callback(ctx, f.snapshot(f.resync))
	f.resync = resync{families: f.resync.families & FailedFamilies(f.err)}
	return f.err
}
