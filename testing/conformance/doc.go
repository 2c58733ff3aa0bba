// Package conformance tests a service-proxy backend on a real Linux kernel, without a cluster: the author of a backend
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
// they see it. It feeds the backend's sink node-local states, sends real traffic from every kind of source to every
// kind of address, and compares what happens with package oracle: who answers, which source is seen, what is refused,
// dropped, or left alone. It restarts the backend, makes it fail, and breaks its rules. [Random] does the same with
// random states, and reduces a failure to the smallest one that it finds.
//
// It tests more than first packets: megabytes in both directions with ends and resets, fragmented datagrams, errors on
// the path to an endpoint, and idle connections; traffic that is not for a service while services change; processes of
// the node that listen on all addresses; addresses that several services list; and addresses that are added to the node
// later.
//
// Clients have random source ports. A failure prints them, and the seed that produces the same ones again, as the
// environment variable KPL_CONFORMANCE_SEED.
//
// A failing case prints the flows, what was seen, what was expected and by which rule, the state that the backend was
// given, and its ruleset.
//
// # One case
//
// Every case is a subtest, named by a sentence:
//
//	go test -v -run 'TestConformance/a_single_endpoint_gets_all_the_traffic'
//
// docs/write-a-backend.md says in which order to work through them.
//
// # What it needs
//
// It needs Linux, and the right to make network namespaces: root, or
//
//	unshare -rn go test ./...
//
// Without it the tests skip, or fail if KPL_REQUIRE=1 is in the environment. A kernel without SCTP sockets is enough:
// the suite then speaks the first half of SCTP's handshake itself.
//
// # What it guarantees
//
// All traffic stays within namespaces that the suite has made. They have no name in the file system and end with the
// process, even if it is killed, so nothing has to be cleaned up. The names of interfaces in them begin with "kpl-".
//
// Nothing is skipped silently: a case that needs a feature in Factory.Lacks, or a function that the factory does not
// have, or that Factory.Waives names, is reported as skipped, and listed at the end.
//
// # Programs
//
// [Judge] tests a service proxy that is a program of its own, by the objects of an API server: the cases and the oracle
// are the same, but nobody says when it has applied a change. testing/judge is the command for that.
//
// # Simulated dataplanes
//
// [Simulate] and [SimulateRandom] test a backend whose real dataplane is not available: the cases, the random states
// and the oracle are the same, but a function simulates what happens to a packet. That tests what the backend programs;
// it cannot show that the real dataplane behaves like the simulation.
//
// # What it does not do
//
// It does not test Kubernetes' semantics, which package localstate turns into the model before a backend sees it, nor
// how fast a backend is.
package conformance
