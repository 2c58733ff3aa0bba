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
	// Cluster are the options for all nodes. ServiceProxyName is that of the source, if the source has one. Each client
	// sends the options of its node.
	Cluster localstate.ClusterOptions
	// Metrics, if given, is the registry for the metrics: they are registered while Run runs. See the package
	// documentation for the list.
	Metrics prometheus.Registerer

	// KeepBytes is approximately how much memory older states may take, for each class of nodes (zone and options). They
	// are kept for at most ten minutes. A client that reconnects with one of them is sent what has changed since; the
	// state of any other client is compared. Default: 64 MB. Negative: none are kept for clients that return. For
	// connected clients that have not acknowledged the newest state, a limit below 16 MB counts as 16 MB.
	KeepBytes int

	// MaxClasses is the maximum number of classes of nodes (zone and options); each takes the memory of a whole state.
	// Only zones that a topology hint names have classes, and half of these are for zones that Nodes have. Once no other
	// class is allowed, nodes of a new one are served like nodes without a zone: their traffic works, but does not stay in
	// the zone. Up to 8 additional classes are for these, and for nodes in zones that no hint names. Default: 64.
	MaxClasses int

	limits limits
}

// maxRequest is the maximum size of a message from a client in bytes: twice that of the digests that are requested at a
// time.
const maxRequest = 256 << 10

// maxAnswer is how long a client may take to answer, or to say Hello.
const maxAnswer = 20 * time.Second

const (
	// maxPerPrincipal is the number of clients of one principal, so that none can use up the limit for all. A node has
	// one client, and for a while also those whose connections broke silently.
	maxPerPrincipal = 64
	// maxClassesPerPrincipal is the number of classes that the clients of one principal use, or have used and that are
	// still kept. The options of a node decide its class, so without a limit one certificate could create all classes.
	maxClassesPerPrincipal = 4
)

// limits bound what clients cost. Only tests change them.
type limits struct {
	// heartbeat is the maximum time between two messages to a client. A client leaves a server that is silent for three
	// times as long.
	heartbeat time.Duration
	// keep is how long a version is kept, so that clients that reconnect can be sent the changes since then. The state
	// of a client that reconnects later is compared. Negative: not at all.
	keep time.Duration
	// maxPublish is how long a revision may take. maxSilence is how long the API server may send nothing about a kind of
	// object with bookmarks, which come about every minute; without bookmarks the silence may be longer, by
	// watchhealth.QuietWatch. After that the server does not claim to be up to date: it sends no heartbeats, so that
	// clients look for another one.
	maxPublish, maxSilence time.Duration
	// maxAge is how long a stream lasts on average: half as long, or half as long again. Then its client connects
	// again, to any server, so that clients spread over the servers after one has been restarted.
	maxAge time.Duration
	// maxOverdue is how much longer a stream lasts whose client does not read, or does not acknowledge.
	maxOverdue time.Duration
	// maxIdle is how long a connection may have no stream.
	maxIdle time.Duration
	// maxDigests is how many bytes of digests are requested from a client at a time.
	maxDigests int
	// maxClients is the number of streams at a time.
	maxClients int
	// maxClasses is the number of classes: each costs the memory of a whole state.
	maxClasses int
	// maxFullStates is the number of clients that are sent a full state, or have theirs compared, at a time. Those that
	// have nearly everything do not count.
	maxFullStates int
	// maxWait is how long a client waits for a slot before it is asked to reconnect later.
	maxWait time.Duration
	// maxCatchUp is how long a client with a newer state than the server's waits before it is asked to try another
	// server.
	maxCatchUp time.Duration
	// minInterval is the pause after a revision: changes that arrive meanwhile are combined. A change after it is sent at
	// once. 0: by cost, see pace. Negative: none.
	minInterval time.Duration
}

// withDefaults returns the limits with defaults for those that are not set.
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
		maxCatchUp:    cmp.Or(l.maxCatchUp, 2*maxPause), // one revision may have just begun its pause
		minInterval:   l.minInterval,
	}
}
