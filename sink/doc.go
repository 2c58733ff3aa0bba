// Package sink has the [Sink] interface, through which a backend receives the node-local state, and tools around it.
//
// # Two styles of backend
//
// The first implements [Sink] itself and receives each change. The second is a callback over the full state:
// [NewFullState] turns it into a Sink that passes it an immutable [Snapshot], which can also list what changed since
// any earlier one. The cost of both is proportional to what changes, never to the size of the cluster. examples/mock is
// in the first style, examples/print-state in the second. [NodeSetter], [Resyncer] and [FailureResyncer] are optional
// interfaces for callers that feed a sink; [Describer], [ProblemReporter], [ContestReporter], [ExternalReporter]
// and [Repairer] are for programs that want to know what a backend does, which have to ask the backend itself.
//
// # Middleware
//
// These are Sinks in front of other Sinks. They pass optional calls on to sinks that have them, and return errors of
// Sync unchanged.
//
//   - [Tee] feeds several sinks.
//   - [Filter] hides services and endpoints from a sink.
//   - [Forward] is for your own middleware to embed, so that it passes everything on; [RememberServices] is one that
//     keeps the services that the middleware needs.
//
// # Tests
//
// [Recorder] is a Sink that records its calls, can fail on request, and checks that the calls comply with the contract.
//
// # What it never does
//
// Nothing here starts a goroutine, waits, retries or drops an error. The caller that feeds the sink decides when to
// call Sync, and what to do when it fails.
package sink
