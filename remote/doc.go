// Package remote is the node's side of the model over gRPC: a [Feed] gets the node's state from a brain, for
// kubeproxy.Run. The brain, package [sigs.k8s.io/kube-proxy-lib/remote/brain], watches the cluster and computes what
// each node must do with service traffic; it sends a node only what changes for it. Its backend needs no access to the
// API server, and can be written in any language: the messages are in v1/remote.proto.
//
//	API server                 the brain (replicas, none knows of another)         nodes
//	Services        watch.     brain.Server                         gRPC, mTLS     Feed
//	EndpointSlices  Source     localstate, once for each class  ->  or Unix   ->   the two layers   ->  sink.Sink
//	Nodes           ------->   of nodes, and each node's parts      sockets        put together
//
// # The life of a connection
//
//	client                                     server
//	Hello: node, options, digest          ->   everything listed? if not: UNAVAILABLE, another one is asked
//	                                      <-   RESUMED    the digest is that of the newest state: one message
//	                                           DIFF       it is that of a state from before: what changed since
//	                                           COMPARE    it is another one: buckets, then services; what differs
//	                                           RESET      there is none: everything, applied only at the end
//	                                           LATER      too many need a full state: when to come again
//	Ack: revision, error of Sync          ->   the node has it; the error is on the status page and in the metrics
//	                                      <-   DIFF       from what was acknowledged to the newest, whatever that is now
//	Ack                                   ->
//	                                      <-   HEARTBEAT  with the digest: silence, or a state that differs, is noticed
//	(cut, or silent for 3 heartbeats)          nothing is queued, nothing is lost: the client holds its state ...
//	Hello to another target, with jitter  ->   ... and says what it has
//
// A client has at most one batch in flight. A slow client is not disconnected, does not affect others, and gets
// everything that it missed in one batch. While no server can be reached, the node keeps its state; health.Proxy says
// since when.
//
// A client says in its Hello how new its state is. A server that has not seen as much yet refers it to the next one, so
// that a replica that lags does not revert a node to an older state; [Options.FreshnessWait] bounds that.
//
// Targets are addresses rather than names, because resolving a name may need the very Services that this node programs.
// They may be in files, which are read periodically: see [Options].
//
// A client exports the metrics of kubeproxy.Run. The network programming latency covers the changes that all nodes of a
// class share; changes of local endpoints have no trigger times here.
//
// # Why it is in the library's module
//
// A separate module would keep google.golang.org/grpc out of the library's go.mod, at the price of a second version to
// keep in step. Adopters would notice gRPC in go.mod only if it raised the versions of other modules. It does not: the
// required version of gRPC needs nothing newer than what the library requires anyway. A program that does not import
// remote links none of it, and one that imports remote alone links no server, which tests check; a program may require
// a newer gRPC.
package remote
