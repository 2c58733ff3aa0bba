// Package watch is where cluster objects come from: a [Source] delivers Services, EndpointSlices, this node's Node and
// the ServiceCIDRs to a [Handler], says when all of them have been listed once, and goes on with their changes.
//
// There are three sources. [NewClientset] asks an API server, [NewInformers] uses informers that the program has
// anyway, and [NewFiles] reads files of the kind that kubectl prints. A program with a source of its own (a gateway's
// cache, a test) implements Source itself.
package watch
