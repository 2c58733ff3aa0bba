package kubeproxy

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/localstate"
)

// Feed is a node-local state that is computed elsewhere, for Options.Feed: Run hands it to the sink and keeps all its
// promises, but computes nothing itself. Package remote implements it, with the state that a server sends.
//
// Pending, Flush and NoLocalEndpoints do what the methods of localstate.State do. They are called under the lock that
// [FeedHandler.Update] holds.
type Feed interface {
	// Run delivers until ctx ends, and then returns nil. If it cannot go on before that, it returns the reason. When it
	// returns, everything that it started has ended.
	Run(ctx context.Context, h FeedHandler) error
	Pending() localstate.Pending
	Flush(localstate.Receiver) localstate.Changes
	NoLocalEndpoints() localstate.NoLocalEndpoints
	// Applied reports the outcome of applying what was last flushed: the error of Sync, or nil. It is called after
	// every Flush; if no Sync was necessary, with the error of the last one. It is called from the goroutine that calls
	// Flush, and must not block.
	Applied(error)
}

// FeedHandler receives what a Feed delivers.
type FeedHandler interface {
	// Update calls change, which modifies the state, while nothing else uses the state.
	Update(change func())
	// Synced says that the state is complete. It is called once.
	Synced()
}

// nodeState is the part of a localstate.State that the loop needs, and that a Feed provides in its place.
type nodeState interface {
	Pending() localstate.Pending
	Flush(localstate.Receiver) localstate.Changes
	NoLocalEndpoints() localstate.NoLocalEndpoints
	AwaitsNodeCIDR() bool
}

// feedState adapts a Feed to nodeState. A Feed delivers nothing before the node's podCIDRs are known.
type feedState struct{ Feed }

func (feedState) AwaitsNodeCIDR() bool { return false }

// feedHandler is the handler that a Feed gets.
type feedHandler struct{ *handler }

// Update implements FeedHandler.
func (h feedHandler) Update(change func()) { h.update(change) }
