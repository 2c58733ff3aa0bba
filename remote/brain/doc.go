// Package brain is the server of package [sigs.k8s.io/kube-proxy-lib/remote]: one [Server] watches the cluster,
// computes what each of many nodes must do with service traffic, and sends each node what changes for it. The
// documentation of package remote shows the protocol and has an example.
//
// # Classes
//
// Nodes that agree in zone, options and in whether they can detect local traffic are a class ([localstate.Class]). Its
// state is computed and stored once, and a change is encoded once, into bytes that all of its nodes share. The node's
// own parts (local endpoints, hints that name it, counts of health checks: [localstate.NodePart]) are sent in addition.
// A change that does not affect a class wakes none of its nodes. A node that moves to another zone is sent the
// difference between the two classes.
//
// A zone that no topology hint names makes no difference, so its nodes are in the class without a zone. When a hint
// names it, they move to a class of their own as soon as that is complete; until then they are sent all changes, and
// use endpoints of all zones. After the last hint is gone they stay there until they connect again.
//
// The server's memory is one state for each class, and for each client pointers into it. It also keeps older versions,
// as the changes since then, for ten minutes, but at most 64 MB for each class: in a large service, each change keeps a
// list of its endpoints.
//
// # How long a change waits
//
// An idle server sends a change at once. Under constant change the server pauses after each revision, and combines the
// changes that arrive meanwhile: revisions and their messages take no more than half of one core. So the pause is some
// milliseconds with a hundred clients, 0.15 s with a thousand and 0.8 s with five thousand; it is never shorter than 5
// ms or longer than a second. What a message costs is measured, by the processor time of the process. Clients whose
// Syncs are expensive announce pauses of their own: messages to clients that pause for 0.75 s or more do not extend a
// revision to more than 100 ms.
//
// # Slow clients
//
// There is no queue for a client. Until it has acknowledged what it was sent, it is sent no further revisions; then it
// is sent the difference between what it has and the newest state. Streams end after 15 to 45 minutes, that of a client
// that does not read or acknowledge up to 5 minutes later.
//
// # Replicas
//
// Replicas share nothing but the cluster. Their revisions are never compared: a client that comes from another replica
// sends a digest of the meaning of its state and receives what differs. If nothing differs, its sink is not called.
//
// # A node never goes back to an older state
//
// A client reports how new its state is, by the resourceVersions that its server has sent it. A replica that has not
// seen as much yet waits two seconds, and then sends the client away, unless both have the same state. A client that
// finds no better replica for some time connects without reporting how new its state is, and is served.
//
// Before a server shuts down, [Server.Drain] sends its clients to other replicas one by one.
//
// # Alive means up to date
//
// A server that has been working on a revision for 15 seconds, or whose API server has sent nothing for 3 minutes,
// sends no heartbeats, so that its clients look for another one. [Server.Ready] returns the reason, and the metrics
// show how long this has lasted. It still serves clients that connect: an old state is better than none.
//
// # Authentication
//
// On a Unix socket, the file mode decides who may connect. Over TCP, clients need a certificate whose common name,
// system:node:NAME, names the node, like a kubelet's; [ServeOptions] takes another function. TCP without TLS needs an
// explicit option (Insecure). A malformed message ends its stream, with an error that says what was wrong.
//
// # Metrics
//
// A Server exports
//
//	kubeproxy_remote_clients, _clients_behind, _clients_failing, _clients_without_zone
//	kubeproxy_remote_revision
//	kubeproxy_remote_watch_age_seconds      since the API server last reported a kind, for the quietest kind
//	kubeproxy_remote_publishing_seconds     how long the current revision has been in progress
//	kubeproxy_remote_publish_duration_seconds   to work out a revision, and to send it
//	kubeproxy_remote_delivery_duration_seconds  from a change that the server saw to a client's acknowledgement
//	kubeproxy_remote_classes, _kept_bytes, _clients_waiting
//	kubeproxy_remote_incomplete_lists_total{resource}  incomplete streamed lists
//	kubeproxy_remote_silent_watch_relists_total{resource}  lists after a silence of the API server
//	kubeproxy_remote_refused_total{reason}  not_listed, draining, clients, clients_of_node, connections, classes,
//	                                        classes_of_node, identity
//	kubeproxy_remote_batches_total{kind}    reset, resumed, resumed_diff, compared, diff, later, behind
//	kubeproxy_remote_sent_bytes_total       of batches, before TLS and HTTP/2
//	kubeproxy_remote_apply_errors_total
//
// and [Server.StatusHandler] lists the worst clients.
package brain

// Where things are:
//
//	server.go, run.go, source.go     one Server, and what it watches
//	serve.go, listen.go, identity.go who may connect, and connection.go, classlimit.go, classslot.go: how often
//	class.go, history.go, parts.go   the state of a class, its versions, and what one node has besides
//	zones.go                         which class a client gets, and when it moves to that of its zone
//	publish.go, pace.go              a revision: what of it changes for whom, and when the next one is made
//	join.go, client.go, receive.go   a stream from its Hello to its end, and what the node says
//	resume.go                        what a client that has a state already is sent first
//	deliver.go, batch.go, send.go    what is sent later: when, the encoded difference, the message
//	progress.go, status.go           how new a state is, and what /status says
