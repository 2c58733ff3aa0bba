// Package sink is where the node-local state goes: the [Sink] interface that a backend implements, and what is built
// around it.
//
// # Two styles of backend
//
// One implements [Sink] itself and is told what is set and deleted. The other is a callback over the full state:
// [NewFullState] turns it into a Sink that hands it an immutable [Snapshot], which also tells what changed since any
// earlier one. Both cost in proportion to what changes, never to the size of the cluster. examples/mock is in the first
// style, examples/print-state in the second. What a sink can do beyond the interface, it shows by implementing
// [NodeSetter], [Resyncer] or [FailureResyncer].
//
// # Middleware
//
// These are Sinks in front of other Sinks. They pass the optional calls on to sinks that have them, and a failure of
// Sync back as it is.
//
//   - [Tee] feeds several sinks.
//   - [Filter] hides services and endpoints from a sink.
//   - [Rewrite] changes services on their way.
//   - [Count] counts the calls, [Log] logs them.
//   - [Forward] is what your own embeds, so that it passes all abilities on.
//
// # Tests
//
// [Recorder] is a Sink that keeps what it is told, can fail on request, and checks that the calls keep the contract.
//
// # What it never does
//
// Nothing here starts a goroutine, waits, retries or drops an error: when to call Sync, and what to do when it fails,
// is up to who feeds the sink.
package sink
