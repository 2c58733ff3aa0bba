// Package network is the test network of package conformance: a node, pods on it and elsewhere, other nodes, clients,
// in network namespaces; servers that answer with their address and the client's as they see it; and clients whose
// connections it opens, and reports what became of them. It knows packets, and neither services nor backends.
package network
