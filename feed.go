package kubeproxy

import (
	"context"
	"sync"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
)

// Feed is where [Run] gets the node-local state from. A [LocalFeed] computes it in this process; package remote has one
// that receives it from a server.
//
// A lock of the run guards the state: the Feed takes it, through [FeedHandler], to change the state, and Run holds it
// while it calls Pending, Flush and NoLocalEndpoints.
//
// A Feed serves one run at a time. Another may begin once the previous one has ended: its sink gets everything again.
//
// This interface may get new methods. A program with cluster objects from elsewhere implements watch.Source.
type Feed interface {
	// Run delivers until ctx ends, and then returns nil. If it has to stop before that, it returns the reason, and the run
	// fails with it. If nothing will change any more, it may return nil once it has called Synced. When it returns,
	// everything that it started has ended. It returns an error if the Feed is running already.
	Run(ctx context.Context, h FeedHandler) error
	// Families returns the IP families of the state, IPv4 first.
	Families() []model.Family
	// Pending, Flush and NoLocalEndpoints do what the methods of localstate.State do. The trigger times that Flush
	// returns become the metric kubeproxy_network_programming_duration_seconds.
	Pending() localstate.Pending
	Flush(localstate.Receiver) localstate.Changes
	NoLocalEndpoints() localstate.NoLocalEndpoints
	// Applied reports the outcome of applying what was last flushed: the error of Sync, or nil. It is called after every
	// Flush; if no Sync was necessary, it gets the error of the last one. It is called from the goroutine that calls
	// Flush, and must not block.
	Applied(error)
}

// FeedHandler receives what a Feed delivers. Its methods may be called from any goroutine while the Feed runs.
//
// Run's handler has three more methods. MinInterval() time.Duration returns how long from now Run hands over nothing,
// because of the last Sync; it changes with each Sync, before the Feed's Applied is called. ListIncomplete(kind
// metav1.Object) counts a streamed list that does not end, WatchSilent(kind metav1.Object) a list that was made because
// the API server was silent, see watch.Handler.
type FeedHandler interface {
	// Lock keeps everything else from using the state, so that the Feed can change it. Unlock records what there is to
	// hand over now.
	sync.Locker
	// Changed counts a Service or EndpointSlice that changed the state, for the metrics. The Feed holds the lock.
	Changed(object any)
	// Synced says that the state is complete, so that it may be applied: everything is listed, and the node's podCIDRs
	// are known if they are needed (S48). It is called once, without the lock.
	Synced()
	// Health returns the health of the run. The Feed sets what only it knows: the phase until it calls Synced, and
	// since when it is disconnected. Everything else is up to Run.
	Health() *health.Proxy
}
