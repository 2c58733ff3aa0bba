// Package conntrack removes stale UDP flows from the kernel's connection tracking, for any backend that uses it to
// rewrite destinations (nftables, iptables, IPVS).
//
// # The problem
//
// The kernel chooses the destination of a flow at its first packet, and keeps it. A UDP flow has no end: while its
// client keeps sending, packets go to the endpoint chosen at first, even long after that endpoint is gone; and a flow
// that began before its service had rules is never rewritten at all. Once such a stale flow is deleted, the next packet
// starts a new one.
//
// # Stale flows
//
// A flow is stale (S40) if it was sent to a service - its original destination is the cluster IP, an external IP or a
// load-balancer VIP of a service with the port's number, or any address with a port's node port - and its replies do
// not come from a serving endpoint of that port. A flow to a node port that is not rewritten is stale only if it was
// sent to an address of this node: others pass through the node. At loopback addresses it is stale only with
// [Options.LocalhostNodePorts]. Traffic policies and topology do not matter: an existing flow may continue to an
// endpoint that gets no new flows. This includes (S41)
//
//   - services without any serving endpoint: all flows to them are stale (kube-proxy leaves out their node ports);
//   - unlike in kube-proxy, services that are gone, and addresses and ports that a service no longer has: flows to them
//     that are still rewritten are stale. Flows that are not rewritten are left alone, which is right where there is no
//     service.
//
// An endpoint counts as serving if [model.Endpoint.Serving] is true or it is in any endpoint set; unlike in kube-proxy,
// flows to an endpoint that is not ready are kept while it gets new flows (publishNotReadyAddresses). For an address
// and port of a service, a node port with the same number matters only if the node has the address: then the endpoints
// of both count. If several services list an address and port, those of all of them count. In both cases, only those of
// the owner do (S59) if the backend says who that is: see [Options.Contests].
//
// # Use
//
// One line: [Wrap] returns a sink that passes all calls on to the backend and removes stale flows after each Sync.
//
// # Guarantees
//
//   - Only UDP flows are deleted, one by one, each by its tuple and ID, so that a new flow with the same tuple is left
//     alone (unless it happens to have the same ID). Flows in conntrack zones other than the default one are left
//     alone.
//   - A clean-up is one pass over the table, whatever the number of services, and looks up each flow in constant time.
//     The table is streamed: memory does not grow with the number of flows. After a small change the kernel sends only
//     the flows concerned.
//   - A pass happens only after a change that can make UDP flows stale (S20), and after a restart:
//     docs/node-services.md lists what starts one, and for which flows. Passes take at most a tenth of the time,
//     however often there is a change, unless one takes more than 1.1 s: see [Wrap].
//
// It works on Linux. On other systems [Kernel] returns an error. Programs with another table, such as their own
// conntrack zone, implement [Table].
package conntrack
