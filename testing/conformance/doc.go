// Package conformance proves a service-proxy backend on a real Linux kernel, without a cluster: the author of a backend
// calls [Test] from a test of their own repository, and gets the whole suite.
//
//	func TestConformance(t *testing.T) {
//		conformance.Test(t, conformance.Factory{
//			New: func(ctx context.Context, env conformance.Env) (sink.Sink, error) {
//				return mybackend.New(env.NetNS.Name())
//			},
//			Cleanup: func(ctx context.Context, env conformance.Env) error { return mybackend.Cleanup(ctx) },
//			Dump:    func(ctx context.Context, env conformance.Env) (string, error) { return mybackend.Dump(ctx) },
//			Lacks:   []conformance.Feature{conformance.SCTP},
//		})
//	}
//
// # What it does
//
// It builds a small cluster of network namespaces: the node that the backend serves, pods on it, other nodes with pods,
// a client outside; dual-stack, with servers for TCP, UDP and SCTP that answer with their address and the client's as
// they see it. It tells the backend's sink node-local states, sends real traffic from every kind of source to every
// kind of address, and compares what happens with package oracle: who answers, which source is seen, what is refused,
// dropped, or left alone. It restarts the backend, has it fail, and breaks its rules. [Random] compares in states that
// nobody thought of, and makes a failure as small as can be.
//
// More than first packets is looked at: megabytes in both directions with ends and resets, datagrams in fragments,
// errors of the way to an endpoint, connections that are idle; traffic that is for no service, while services change;
// processes of the node that listen on all addresses; addresses that several services list, and those that the node
// gets later.
//
// Clients have random source ports. A failure says which, and how to get the same ones again: KPL_CONFORMANCE_SEED in
// the environment is the seed.
//
// A failing case prints the flows, what was seen, what was expected and by which rule, what the backend had been told,
// and its ruleset.
//
// # What it needs
//
// Linux, and the right to make network namespaces: root, or
//
//	unshare -rn go test ./...
//
// Where that is missing the tests skip, or fail if KPL_REQUIRE=1 is in the environment. A kernel without SCTP sockets
// will do: the suite then speaks the first half of SCTP's handshake itself.
//
// # What it guarantees
//
// All traffic stays within namespaces that the suite has made. They have no name in the file system and go with the
// process, even if it is killed: there is never anything to clean up. Interfaces in them begin with "kpl-".
//
// Nothing is passed silently: a case that needs what Factory.Lacks names, or a function that the factory does not have,
// is reported as skipped, and listed at the end.
//
// # Dataplanes that cannot be had
//
// [Simulate] and [SimulateRandom] judge a backend whose dataplane is a simulation: the same cases, the same random
// states and the same oracle, but what becomes of a packet is a question to a function. That shows what the backend
// makes of a state; it cannot show that the real dataplane does what the simulation says.
//
// # What it does not do
//
// It does not test Kubernetes' semantics, which package localstate turns into the model before a backend sees it, nor
// how fast a backend is.
package conformance
