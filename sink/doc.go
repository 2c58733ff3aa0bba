// Package sink is where the node-local state goes: the [Sink] interface that a backend implements, and what is built
// around it.
//
// # Two styles of backend
//
// The first implements [Sink] itself and is told what is set and deleted. The second is a callback over the full state:
// [NewFullState] turns it into a Sink that passes it an immutable [Snapshot], which can also list what changed since
// any earlier one. Both cost in proportion to what changes, never to the size of the cluster. examples/mock is in the
// first style, examples/print-state in the second. A sink shows what it can do beyond the interface by implementing
// [NodeSetter], [Resyncer] or [FailureResyncer].
//
// # Middleware
//
// These are Sinks in front of other Sinks. They pass optional calls on to sinks that have them, and return errors of
// Sync unchanged.
//
//   - [Tee] feeds several sinks.
//   - [Filter] hides services and endpoints from a sink.
//   - [Rewrite] changes services on their way.
//   - [Count] counts the calls, [Log] logs them.
//   - [Forward] is embedded by middleware of your own, so that it passes everything on.
//
// # Tests
//
// [Recorder] is a Sink that keeps what it is told, can fail on request, and checks that calls comply with the contract.
//
// # What it never does
//
// Nothing here starts a goroutine, waits, retries or drops an error. When to call Sync, and what to do when it fails,
// is up to the caller that feeds the sink.
package sink
