// Package conntrack removes stale UDP flows from the kernel's connection tracking, for any backend that rewrites
// destinations with it (nftables, iptables, IPVS).
//
// # What it is for
//
// The kernel decides only once where a flow goes, when its first packet comes. A UDP flow has no end: while its client
// keeps sending, it goes to the endpoint that was chosen then, even long after that endpoint has gone; and a flow that
// began before its service had a rule is never rewritten at all. A stale flow has to be deleted, and the next packet
// makes a new one.
//
// # What is stale
//
// A flow is stale (S40) if it was sent to a service - its original destination is the cluster IP, an external IP or a
// load-balancer VIP of a service with the port's number, or any address with a port's node port - and its replies do
// not come from an endpoint of that port that serves. To a node port, a flow that is not rewritten is only stale if it
// was sent to an address of this node: others pass through. Traffic policies and topology do not matter: a flow that
// exists may go on to an endpoint that new flows are not sent to. This includes (S41, unlike kube-proxy)
//
//   - services without any serving endpoint: all flows to them are stale;
//   - services that are gone, and addresses and ports that a service no longer has: what is still rewritten there is
//     stale. What is not rewritten is left alone: without a service, that is what should happen.
//
// An endpoint serves here if it is [model.Endpoint.Serving] or in any of the endpoint sets; unlike in kube-proxy a flow
// is not cut off from an endpoint that is not ready while new flows are sent to it (publishNotReadyAddresses). Where an
// address and port is that of a service, a node port of the same number does not matter.
//
// # How to use it
//
// Most backends need one line: [Wrap] returns a sink that passes everything on to the backend and cleans up after it.
// Others call [DeleteStale].
//
// # Guarantees
//
//   - Only UDP flows are ever deleted, one by one, each by its tuple and its ID, so that a flow that has just taken its
//     place is left alone (except for the rare one that gets the same ID from the kernel). Flows in conntrack zones
//     other than the default one belong to somebody else and are left alone.
//   - A clean-up is one pass over the table, whatever the number of services, and looks up each flow in constant time.
//     The table is streamed: memory does not grow with the number of flows. After a small change the kernel shows only
//     the flows concerned.
//   - The pass runs only when something changed that can have made UDP flows stale (S20), and after a restart.
//
// It works on Linux. Elsewhere [Kernel] returns an error, and everything else compiles and can be tested with [Fake].
package conntrack
