package brain

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Options configures a [Server]. Source is needed; everything else has a default.
type Options struct {
	// Source is where cluster objects come from. The server asks it for all Nodes.
	Source watch.Source
	// Cluster is what is worked out for all nodes. ServiceProxyName is taken from the source if the source has one.
	// What is a node's, its client says.
	Cluster localstate.ClusterOptions
	// Metrics, if given, is the registry for the metrics: they are registered while Run runs. See the package
	// documentation for the list.
	Metrics prometheus.Registerer

	// KeepBytes is about how much memory the older states may take that are kept, for at most ten minutes, of each class
	// of nodes (zone and options): a client that comes back with one of them is sent what has changed since. Others have
	// to be compared. Default: 64 MB. Negative: none is kept for that. For clients that are connected, and have not yet
	// acknowledged what is new, at least 16 MB are kept in any case.
	KeepBytes int

	limits limits
}

// limits bound what clients cost. Only tests change them.
type limits struct {
	// heartbeat is the maximum time between two messages to a client. A client leaves a server that is silent for three
	// times as long.
	heartbeat time.Duration
	// keep is how long a version is kept for clients that reconnect, so that the changes since then are available. The
	// state of a client that comes later is compared. Negative: not at all.
	keep time.Duration
	// maxPublish is how long a revision may take, and maxSilence how long the API server may say nothing of a kind of
	// object for which it sends bookmarks, about every minute; without them it may say nothing for freshness.QuietWatch
	// longer. After that the server does not claim to be up to date: it sends no heartbeats, so that clients look for
	// another one.
	maxPublish, maxSilence time.Duration
	// maxAge is how long a stream lasts on average: half as long, or half as long again. Then its client connects
	// again, to any server, so that clients spread over the servers after one has been restarted.
	maxAge time.Duration
	// maxOverdue is how much longer a stream lasts whose client does not read, or does not acknowledge.
	maxOverdue time.Duration
	// maxIdle is how long a connection may have no stream.
	maxIdle time.Duration
	// maxDigests is how many bytes of digests a client is asked for at a time.
	maxDigests int
	// maxClients is the number of streams at a time.
	maxClients int
	// maxClasses is the number of classes: each costs the memory of a whole state.
	maxClasses int
	// maxFullStates is the number of clients that are sent a full state, or have theirs compared, at a time. Those that
	// have nearly everything do not count.
	maxFullStates int
	// maxWait is how long a client waits for its turn before it is told to come again later.
	maxWait time.Duration
	// maxCatchUp is how long a client with a newer state than the server's waits before it is told to ask another one.
	maxCatchUp time.Duration
	// minInterval is the minimum time between two revisions: changes in between are combined. A change after a pause is
	// sent at once. Negative: none.
	minInterval time.Duration
}

// withDefaults returns the limits with those that are not set.
func (l limits) withDefaults() limits {
	return limits{
		heartbeat:     cmp.Or(l.heartbeat, 12*time.Second),
		keep:          cmp.Or(l.keep, 10*time.Minute),
		maxPublish:    cmp.Or(l.maxPublish, 15*time.Second),
		maxSilence:    cmp.Or(l.maxSilence, 3*time.Minute),
		maxAge:        cmp.Or(l.maxAge, 30*time.Minute),
		maxOverdue:    cmp.Or(l.maxOverdue, 5*time.Minute),
		maxIdle:       cmp.Or(l.maxIdle, time.Minute),
		maxDigests:    cmp.Or(l.maxDigests, maxRequest/2),
		maxClients:    cmp.Or(l.maxClients, 20_000),
		maxClasses:    cmp.Or(l.maxClasses, 64),
		maxFullStates: cmp.Or(l.maxFullStates, 64),
		maxWait:       cmp.Or(l.maxWait, 5*time.Second),
		maxCatchUp:    cmp.Or(l.maxCatchUp, time.Second),
		minInterval:   cmp.Or(l.minInterval, 100*time.Millisecond),
	}
}
