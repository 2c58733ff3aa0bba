// Package network is the test network of package conformance: network namespaces for a node, its pods, other nodes with
// pods, and clients; servers that answer with their own address and the client's as they see it; and connections from
// clients, whose results it reports. It knows packets, but neither services nor backends.
package network
