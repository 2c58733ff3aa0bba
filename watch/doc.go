// Package watch has the sources of cluster objects: a [Source] delivers Services, EndpointSlices, this node's Node and
// the ServiceCIDRs to a [Handler], says when all of them have been listed, and then delivers their changes.
//
// # Which source
//
//   - [NewClientset] lists and watches with an API server. The server filters, and no object is kept in memory. This is
//     the source for a proxy on a node.
//   - [NewInformers] uses the informers that a controller or agent already has. Wrap their client's transport with
//     [ListFallback], in case a tunnel drops the end of streamed lists.
//   - [NewFiles] and [NewFilesFS] read files like those that kubectl prints: for tests, demonstrations, static
//     clusters, and bug reports.
//
// A program with a different source (a gateway's cache, a test) implements Source itself.
//
// # Guarantees
//
// When [Handler.Synced] is called, every kind of object has been listed, and the handler has received all of them. A
// list that fails, even for lack of permission, is retried, and Synced waits for it. ServiceCIDRs are the exception: if
// they may not be listed, Synced does not wait for them. An empty cluster is complete.
//
// No deletion is lost. An object that was deleted while the connection was down, or while a file could not be read, is
// delivered as deleted once that is known.
//
// When Run returns, no call to the handler is in progress, and none will follow.
//
// # Limits
//
// Interpreting the objects is up to package localstate. That includes rule S1: [Clientset] has the API server leave out
// Services of other proxies, headless Services and their slices; the other sources deliver them. No source delivers
// other nodes' Nodes. Sources do not order kinds of objects: an EndpointSlice may come before its Service. They do not
// write to the cluster.
package watch

// Where things are:
//
//	watch.go, kind.go            Source, Handler, and the kinds of object
//	clientset.go                 an API server: which lists and watches there are
//	clientset_input.go           one of these: its reflector, pauses, and errors
//	clientset_store.go           what has vanished when everything was listed anew
//	clientset_stream.go          streamed lists that do not end
//	clientset_outage.go          what is logged while a server cannot be reached
//	clientset_silence.go         a server that sends nothing (S68)
//	informers.go                 a program's own informers
//	informers_fallback.go        their streamed lists that do not end
//	files.go, files_*.go         files: where they are, when they are read, and what has changed in them
//	filter.go, trim.go           which objects are for this proxy, and what is kept of them
