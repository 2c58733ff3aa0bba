// Package watch is where cluster objects come from: a [Source] delivers Services, EndpointSlices, this node's Node and
// the ServiceCIDRs to a [Handler], says when all of them have been listed once, and goes on with their changes.
//
// # Which source
//
//   - [NewClientset] asks an API server. It lets the server filter, and keeps no object in memory. This is what a proxy
//     on a node needs.
//   - [NewInformers] uses the program's own informers, in a controller or agent that has them anyway.
//   - [NewFiles] and [NewFilesFS] read files of the kind that kubectl prints: for tests, demonstrations, clusters that
//     are written down, and bug reports.
//
// A program with a source of its own (a gateway's cache, a test) implements Source itself.
//
// # What all of them guarantee
//
// When [Handler.Synced] is called, the handler has everything: every kind of object has been listed, and the handler
// has seen all of it. A list that fails, even for lack of permission, is retried, and nothing counts as complete
// meanwhile. ServiceCIDRs are the exception: where they may not be listed, the rest is complete without them. An empty
// cluster is complete.
//
// Nothing is lost. What was deleted while the connection was down, or while a file could not be read, is delivered as
// deleted once that is known. The same goes for an object that changes so that S1 excludes it: one that another proxy
// takes over, or that becomes headless.
//
// When Run returns, no call of the handler is in progress, and none will follow.
//
// # What they do not do
//
// They apply rule S1 (no Services of other proxies, no headless Services and none of their slices, of the Nodes the own
// one) and nothing else: the meaning of the objects is up to package localstate. They do not order the kinds of object:
// an EndpointSlice may come before its Service. They do not write to the cluster.
package watch
