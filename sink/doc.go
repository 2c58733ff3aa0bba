// Package sink is where the node-local state goes: the [Sink] interface that a backend implements, and what is built
// around it.
//
// There are two styles of backend. One implements [Sink] itself and is told what is set and deleted. The other is a
// callback over the full state: [NewFullState] turns it into a Sink that hands it an immutable [Snapshot], which also
// tells what changed since any earlier one. Both cost in proportion to what changes, never to the size of the cluster.
//
// [Tee] feeds several sinks, [Filter] hides services from one, [Log] writes down what passes, and [Recorder] keeps it
// for tests. What a sink can do beyond the interface, it shows by implementing [NodeSetter] or [Resyncer].
package sink
