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
// It builds a small dual-stack cluster of network namespaces: the node that the backend serves, its pods, other nodes
// with pods, and an external client. Servers for TCP, UDP and SCTP answer with their own address and the client's
// address as they see it. The suite feeds node-local states to the backend's sink, sends real traffic from every kind
// of source to every kind of address, and compares the results with package oracle: which endpoint answers, which
// source it sees, what is refused, dropped or left alone. It restarts the backend, makes it fail, and breaks its rules.
// [Random] does the same with random states, and reduces a failure to the smallest one that it finds.
//
// It tests more than first packets: megabytes in both directions, closes and resets, fragmented datagrams, ICMP errors
// from the path, idle connections; traffic that is not for a service while services change; node processes that listen
// on all addresses; addresses that several services list; and addresses that the node gains later. What outlives a
// change is tried as well: UDP flows from before an address was served, the chains of an older kube-proxy, those of
// other programs, and the clients of an affinity timeout that is lowered.
//
// Clients have random source ports. A failure prints them, and the seed that reproduces them through the environment
// variable KPL_CONFORMANCE_SEED.
//
// A failing case prints the flows, the results, the expected results and their rules, the state that the backend was
// given, and its ruleset.
//
// # One case
//
// Every case is a subtest whose name is a sentence:
//
//	go test -v -run 'TestConformance/a_single_endpoint_gets_all_the_traffic'
//
// docs/write-a-backend.md suggests the order in which to work through them.
//
// # What it needs
//
// It needs Linux and the right to create network namespaces: root, or
//
//	unshare -rn go test ./...
//
// Without it the tests skip; with KPL_REQUIRE=1 in the environment they fail. On a kernel without SCTP sockets the
// suite speaks the first half of SCTP's handshake itself.
//
// # What it guarantees
//
// All traffic stays within namespaces that the suite creates. They have no name in the file system and disappear with
// the process, even if it is killed. The names of their interfaces begin with "kpl-".
//
// Nothing is skipped silently: a case that needs a feature in Factory.Lacks or a function that the factory does not
// set, or that Factory.Waives names, is reported as skipped and listed at the end.
//
// # Programs
//
// Package judge tests a service proxy that is a program, with the same cases and the same oracle, or compares two of
// them. cmd/judge is its command. Package report has the result.
//
// # Simulated dataplanes
//
// [Simulate] and [SimulateRandom] test a backend whose real dataplane is not available: the cases, the random states
// and the oracle are the same, but a function simulates the treatment of each packet. That tests what the backend
// programs, but not that the real dataplane behaves like the simulation.
//
// # What it does not do
//
// It does not test the semantics of Kubernetes objects, which package localstate turns into the model before a backend
// sees them, nor performance: a benchmark with a few thousand services shows whether cost follows change.
//
// # Where things are
//
// Each package imports only packages further down:
//
//	judge               tests a program, or compares two
//	program, report     the types that it takes and returns
//	internal/suite      runs cases and random states as Go tests
//	internal/cases      what is tested
//	internal/random     random states and connections, and how a failure is reduced
//	internal/testbed    one backend on the network: its states, its traffic, and whether that is right
//	internal/cluster    services and setups as cases describe them, and their objects
//	internal/backend    the backend under test
//	internal/speed      the speed of a program; like machine and evidence, only the judge needs it
//	internal/network    namespaces, servers and clients
//
// Package internal/simple is a backend with many faults, for the tests of the suite and the judge.
package conformance
