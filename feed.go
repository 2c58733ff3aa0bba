package kubeproxy

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// Feed is a node-local state that is computed elsewhere, for Options.Feed: Run hands it to the sink and keeps all its
// promises, but computes nothing itself. Package remote has one, which gets the state from a server.
//
// Pending, Flush and NoLocalEndpoints are those of localstate.State. They are called under the lock under which
// [FeedHandler.Update] calls.
type Feed interface {
	// Run delivers until ctx ends, and then returns nil, or until it cannot go on, and then returns the reason. When it
	// returns, everything that it started has ended.
	Run(ctx context.Context, h FeedHandler) error
	Pending() localstate.Pending
	Flush(localstate.Receiver) localstate.Changes
	NoLocalEndpoints() localstate.NoLocalEndpoints
	// Applied reports the outcome of applying what was last flushed: the error of Sync, or nil. It is called after
	// every Flush; if that made no Sync necessary, with the error of the last one. It is called from the goroutine that
	// calls Flush, and must not wait.
	Applied(error)
}

// FeedHandler receives what a Feed delivers.
type FeedHandler interface {
	// Update calls a function, which changes the state, while nothing else uses it.
	Update(change func())
	// Synced says that the state is complete. It is called once.
	Synced()
}

// nodeState is the part of a localstate.State that the loop works with, and that a Feed has in its place.
type nodeState interface {
	Pending() localstate.Pending
	Flush(localstate.Receiver) localstate.Changes
	NoLocalEndpoints() localstate.NoLocalEndpoints
	AwaitsNodeCIDR() bool
}

// feedState is the nodeState of a Feed, which does not deliver anything before it is complete.
type feedState struct{ Feed }

func (feedState) AwaitsNodeCIDR() bool { return false }

// feedHandler is a handler as a Feed sees it.
type feedHandler struct{ *handler }

// Update implements FeedHandler.
func (h feedHandler) Update(change func()) { h.update(change) }
