package kubeproxy

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// Feed is a node-local state that is worked out elsewhere, for Options.Feed: Run hands it to the sink with all that it
// promises, but works out nothing. Package remote has one, which gets it from a server.
//
// Pending, Flush and NoLocalEndpoints are those of localstate.State. They are called under the lock under which
// [FeedHandler.Update] calls.
type Feed interface {
	// Run delivers until ctx ends, and then returns nil; or until it cannot go on, and then returns why. All that it
	// started has ended when it returns.
	Run(ctx context.Context, h FeedHandler) error
	Pending() localstate.Pending
	Flush(localstate.Receiver) localstate.Changes
	NoLocalEndpoints() localstate.NoLocalEndpoints
	// Applied says how it went to apply what was last flushed: the error of Sync, or nil. It comes after every Flush:
	// if that made no Sync necessary, the error is that of the last one. It is called from the goroutine that calls
	// Flush, and must not wait.
	Applied(error)
}

// FeedHandler is told by a Feed what comes.
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
