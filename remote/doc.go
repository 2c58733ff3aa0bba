// Package remote is the model over gRPC: one brain, a [Server], watches the cluster and works out what each node must
// do with service traffic; on each node a [Feed] gets that from the brain, for kubeproxy.Run. A node is sent only what
// changes for it. Its backend needs no access to the API server, and can be written in any language: the messages are
// in v1/remote.proto.
//
//	API server                 the brain (replicas, none knows of another)         nodes
//	Services        watch.     Server                               gRPC, mTLS     Feed
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
// A client has at most one batch in flight. A slow client is not disconnected, does not affect others, and gets the sum
// of what it missed in one batch. While no server can be reached, the node keeps its state; health.Proxy says since
// when.
//
// # Classes
//
// Nodes that agree in zone, options and in whether they can detect local traffic are a class ([localstate.Class]). Its
// state is worked out once, held once, and a change is encoded once, into bytes that all of its nodes share. The node's
// own parts (local endpoints, hints that name it, counts of health checks: [localstate.NodePart]) are sent in addition.
// A change that does not affect a class wakes none of its nodes. A node that moves to another zone is sent the
// difference between the two classes.
//
// The server's memory is one state for each class, and for each client pointers into it. Of older versions it keeps the
// changes, for ten minutes.
//
// # Replicas
//
// Replicas share nothing but the cluster. Their revisions are never compared: a client that comes from another replica
// sends a digest of the meaning of its state, and is sent what differs. If nothing differs, its sink is not called.
//
// # Authentication
//
// On a Unix socket, the file mode decides who may connect. Over TCP, clients need a certificate whose common name,
// system:node:NAME, names the node, like a kubelet's; [ServeOptions] takes another function. TCP without TLS needs an
// explicit option (Insecure). Targets are addresses, not names, because resolving a name may need the very Services
// that this node programs. A malformed message ends its stream, with an error that says what was wrong.
//
// # Metrics
//
// A Server exports
//
//	kubeproxy_remote_clients, _clients_behind, _clients_failing
//	kubeproxy_remote_revision
//	kubeproxy_remote_batches_total{kind}    reset, resumed, resumed_diff, compared, diff, later
//	kubeproxy_remote_sent_bytes_total       of batches, before TLS and HTTP/2
//	kubeproxy_remote_apply_errors_total
//
// and [Server.StatusHandler] lists the worst clients. A client exports the metrics of kubeproxy.Run. The network
// programming latency covers the changes that all nodes of a class share; changes of local endpoints have no trigger
// times here.
//
// # Why it is in the library's module
//
// A separate module would keep google.golang.org/grpc out of the library's go.mod, at the price of a second version to
// keep in step. Adopters would notice gRPC in go.mod only if it raised the versions of other modules. It does not: the
// required version of gRPC needs nothing newer than what the library requires anyway. A program that does not import
// remote links none of it, which a test checks; a program may require a newer gRPC.
package remote
