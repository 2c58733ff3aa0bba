// Package frontend is the half of a backend that does not depend on its dataplane. It is for every dataplane that maps
// "address, protocol, port -> a set of endpoints": nftables, iptables, IPVS, HNS, eBPF maps, OVS groups.
//
// A [Table] is a [sink.Sink]. It receives services and endpoints, and tells the backend, one IP family at a time, what
// differs from what the dataplane already does:
//
//	sink calls ──► Table ──► Apply(ctx, changes of IPv4) ──► your dataplane
//	                   └───► Apply(ctx, changes of IPv6) ──► your dataplane
//
// # Terms
//
//   - A frontend is one way to reach a service port: an address, protocol and port, or a node port. See [Frontend].
//   - Its owner is the service port that has it. Several may ask for the same frontend; only one gets it.
//   - A backend set is the endpoints of a service port that a route balances over: the cluster set, the local set, and
//     [Draining]. Each endpoint has a slot in its set, and keeps it while others are added and removed.
//   - A backend, without "set", is a program like yours.
//
// # What it guarantees
//
//   - The cost of a wave is proportional to what it changes. Replacing an endpoint changes one slot, even in a service
//     with 50,000 endpoints or with 8,000 addresses or ports. A change of the service itself costs in proportion to its
//     addresses and ports.
//   - Changes are relative to what was last accepted: see [Options.Apply]. An error loses nothing, and does not affect
//     the other family.
//   - A service port that the dataplane refuses affects no other one: see below.
//   - A change that is undone before it is accepted is not reported.
//   - Every key has one owner at a time. Which one does not depend on the order of the calls in a wave.
//   - Neither a service nor a namespace is served more than [Limits] allow.
//   - A wave is reported as a whole: between two Syncs the table stays as it was at the last one, for repairs.
//   - A part of a service that cannot be served is skipped and named in a [Problem], which is logged once. Everything
//     else goes on.
//
// # Who owns a contested address (S59)
//
// Two services may list the same external IP. The service port that has it keeps it, even if it is renamed. Among
// newcomers the oldest service gets it; after a restart all are newcomers. The exception is a cluster IP: it always
// belongs to its service, because the API server gives it to no other. The next one gets the address when the owner is
// deleted or no longer asks for it; what that costs does not depend on how many wait.
//
// A node port, and an external IP or VIP that is an address of the node and has the same port number, contest that
// address as well, if the table knows where node ports are served: see Options.NodePortAddresses. If the node port has
// it, the other one is not among the frontends; if not, the node port is served on the node's other addresses.
//
// # What is left to the backend
//
// The backend matches packets, balances, implements session affinity (S32), masquerades, refuses and drops, recognises
// local pods (S30), and finds out which addresses of the node serve node ports (S35, package nodeaddr). All decisions
// that this depends on are in [Port], as values.
//
// # Applying changes
//
// For each [PortChange] a backend compares Before with After for what all frontends of the port share (routes,
// affinity, the sizes of sets), and follows the changed frontends and slots for the rest:
//
//	func (b *backend) apply(ctx context.Context, c *frontend.Changes) error {
//		for p := range c.Ports() {
//			for _, e := range p.EndpointChanges(model.ClusterSet) {
//				...
//
// A backend that replaces the whole state of its dataplane reads [Changes.All] instead. One whose dataplane is in the
// process applies [Changes.Difference], because nothing is lost there.
//
// # Ports that the dataplane refuses
//
// A backend whose dataplane refuses one service port says so, and goes on with the others:
//
//	for p := range c.Ports() {
//		if err := dev.put(p); err != nil {
//			p.Refuse(p.Before, err) // or nil, if the dataplane has nothing of the port any more
//		}
//	}
//	return nil
//
// Everything else is accepted. The table remembers what the dataplane has of the port, and delivers the port again when
// it changes and at a retry, with exactly that as its Before. Until it is accepted, every Sync reports the error. A
// backend needs no map of what is installed, nor of what has failed. See [PortChange.Refuse].
//
// # How "not served" travels
//
// What the dataplane refuses is a [sink.PortError]; what this package itself does not serve, whatever the dataplane, is
// a [Problem]. This is the way of both, from the errno to the Event:
//
//	kernel    EOPNOTSUPP for the rules of one port
//	backend   p.Refuse(has, err); it keeps only what its dataplane needs to try again: iptables searches for the rules
//	          that a restore failed for, and refuses ports that it could not tell apart with RefuseInDoubt; ipvs and hns
//	          know which real server, address or endpoint failed
//	Table     remembers the port in its ledger, delivers it again, and returns one *sink.PortError for each such port
//	          from every Sync, which says whether the dataplane has something of the port for outside clients: a backend
//	          that has a part of a port knows, and says so with Report
//	health    fails the health check of a Service that outside clients reach at no port, also where others own all of
//	          its external addresses: see ReportExternal
//	Run       retries them after a pause that doubles; logs each once until its error changes, and calls OnPortError,
//	          but of a Service eight at a time and the number of the others; and counts all in
//	          kubeproxy_service_ports_failed
//	page      has each service with a PortError as failing, and each with a Problem as not served in part
//	drop-in   writes an Event: FailedToApplyServicePort, or the Reason of the Problem
//
//	Table     a Problem: another port owns the address, or a limit is exceeded, for example. It is logged once, and
//	          passed to Options.OnProblem; the function given to ReportProblems learns of the Service, and Problems
//	          says what it is
//	Limits    a Problem of these is also the Err of a *sink.PortError, so that it is retried and counted as one; the
//	          drop-in writes one Event for both
//
// # Memory
//
// The table needs 95 to 130 bytes for each endpoint, fewer in large services, in addition to the model values
// themselves, which it keeps.
package frontend
