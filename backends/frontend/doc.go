// Package frontend is the half of a backend that has nothing to do with its dataplane. It is for every dataplane that
// thinks in "address, protocol, port -> a set of endpoints": nftables, iptables, IPVS, HNS, maps of eBPF, groups of
// OVS.
//
// A [Table] is a [sink.Sink]. It is fed services and endpoints, and tells the backend, one IP family at a time, what
// differs from what the dataplane already does:
//
//	sink calls ──► Table ──► Apply(ctx, changes of IPv4) ──► your dataplane
//	                   └───► Apply(ctx, changes of IPv6) ──► your dataplane
//
// # Words
//
//   - A frontend is one way to reach a service port: an address, protocol and port, or a node port. See [Frontend].
//   - Its owner is the service port that has it. Several may ask for the same one; one gets it.
//   - A backend set is the endpoints of a service port that a route balances over: the cluster set, the local set, and
//     [Draining]. Each endpoint is in a slot of its set, and keeps it while others come and go.
//   - A backend, without "set", is a program like yours.
//
// # What it guarantees
//
//   - A wave costs what it changes. Replacing an endpoint changes one slot, even in a service with 50,000 endpoints or
//     with 8,000 addresses or ports. A change of the service itself costs in proportion to its addresses and ports.
//   - Changes are relative to what was last accepted: see [Options.Apply]. An error loses nothing, and does not affect
//     the other family.
//   - A change that is undone before it was accepted is not reported.
//   - Every key has one owner at a time. Which one does not depend on the order of the calls in a wave.
//   - A wave is reported as a whole: between two Syncs the table stays as it was at the last one, for repairs.
//   - What cannot be served is skipped, by name: a [Problem], logged once. Everything else goes on.
//
// # Who owns a contested address (S59)
//
// Nothing keeps two services from listing the same external IP. The service port that has it keeps it, also when it is
// renamed. Among newcomers the oldest service gets it; after a restart all are newcomers. The exception is a cluster
// IP: it always belongs to its service, because the API server gives it to no other. The next one gets the address when
// the owner goes or no longer asks for it.
//
// # What is left to the backend
//
// To match packets, to balance, to keep clients with session affinity (S32), to masquerade, to refuse and drop, to tell
// local pods apart (S30), and to know which addresses of the node serve node ports (S35, package nodeaddr). All
// decisions that these depend on are in [Port], as values.
//
// # Applying changes
//
// For each [PortChange] a backend compares Before with After for what is the same for all frontends of the port
// (routes, affinity, the sizes of sets), and follows the changed frontends and slots for the rest:
//
//	func (b *backend) apply(ctx context.Context, c *frontend.Changes) error {
//		for p := range c.Ports() {
//			for _, e := range p.EndpointChanges(model.ClusterSet) {
//				...
//
// A backend whose dataplane takes everything at once reads [Changes.All] instead, whenever [Changes.IsEmpty] is false.
// One whose dataplane is in the process applies [Changes.Difference], for nothing is lost there.
//
// # Memory
//
// 95 to 130 bytes for each endpoint, fewer in large services, besides the model values themselves, which the table
// keeps.
package frontend
