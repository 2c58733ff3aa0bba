package sink

import (
	"context"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Sink receives the node-local state as a stream of changes that come in waves: any number of Set and Delete calls,
// then one Sync. It is what a backend implements.
//
// # What the calls mean
//
// The Set and Delete calls describe; they should not touch the dataplane, cannot fail, and return soon. Sync applies
// what has been described. Between two Syncs the state may be inconsistent (a service without its endpoints); at a Sync
// it is consistent and complete: the first Sync comes only after everything that the cluster holds has been described.
//
// # Order within a wave
//
// At any moment every endpoint that has been set belongs to a port of a service that has been set. A wave goes:
//
//  1. [NodeSetter.SetNode], if the sink has it and the node changed; the first wave always has it.
//  2. For each service that goes, ordered by name: DeleteEndpoint for its endpoints, then DeleteService.
//  3. For each service that comes or changes, ordered by name: DeleteEndpoint for endpoints that go, SetService if the
//     service itself changed, SetEndpoint for those that come or change. Endpoints are in [model.EndpointKey] order.
//  4. Sync.
//
// Addresses may move between services within a wave, so a sink that keys on addresses resolves them at Sync.
//
// # Idempotency
//
// Set is create or replace: setting what is already there, unchanged too, is not an error. Nor is deleting what is not
// there. A runner does not make calls that change nothing, but middleware and tests may.
//
// # Errors
//
// An error from Sync means: not everything is applied. Sync is called again, and what has been described is not
// repeated: the sink keeps it. A sink therefore compares with what was last applied, not with what it was last told.
// Until everything is applied there are two kinds of Sync:
//
//   - Changes go on coming, each wave with its Sync. They stay incremental: the sink applies them wherever nothing has
//     failed. Where something has, it may try them too, or leave that alone until the retry; then it returns the error
//     again.
//   - The retry comes after a pause that grows. It goes with [FailureResyncer.ResyncFailed] if the sink has that,
//     otherwise with [Resyncer.ForceResync] if it has that.
//
// A sink that serves both families and knows that only one failed says so with [FamilyError]. One that applied all but
// some service ports says so with [PortError]; for those alone there is no ForceResync. One that can never succeed
// says so with [PermanentError]. ctx ends when the process is to stop; Sync should then return soon, with ctx's error.
//
// # More abilities
//
// What a sink can do beyond this interface it shows by [NodeSetter], [Resyncer] and [FailureResyncer], which its caller
// looks for. A struct that embeds a Sink has only the methods of this interface: it hides what the Sink inside can do
// besides, so that this never hears of the node and is never resynced. Middleware embeds a [Forward] instead;
// LostAbilities in testing/fakemodel finds what is lost.
//
// # Ownership and concurrency
//
// The values are immutable and the sink may keep them, see package model. All calls come from one goroutine at a time:
// an implementation needs no lock for its own state.
//
// # Restart
//
// A new process starts with an empty description and describes everything in its first wave. What the dataplane still
// does from an earlier run is the sink's to find, adopt and correct at the first Sync, without a gap in service. There
// is no call that says "clean up": what is applied stays applied when the process ends.
type Sink interface {
	SetService(*model.Service)
	DeleteService(model.ServiceName)
	SetEndpoint(*model.Endpoint)
	DeleteEndpoint(model.EndpointKey)
	// Sync marks a consistent state: apply it.
	Sync(ctx context.Context) error
}

// NodeSetter is implemented by sinks that want to know the node and the cluster's address plan.
type NodeSetter interface {
	SetNode(*model.Node)
}

// Resyncer is implemented by sinks that remember what they applied. ForceResync asks the next Sync to trust none of
// that memory: read what the dataplane has, compare everything, and correct it, without a gap in service. Where that
// Sync fails it stays asked for. It is called from the same goroutine as Sink's methods: periodically, and before a
// retry if the sink is no [FailureResyncer].
type Resyncer interface {
	ForceResync()
}

// FailureResyncer is implemented by sinks that can try again what failed alone, such as one family, one sink of a [Tee]
// or a service port. ResyncFailed asks the next Sync to trust no memory of what failed in the last one, and to try that
// in full; what succeeded stays incremental. If nothing failed it does nothing. It is called from the same goroutine as
// Sink's methods, before a retry.
type FailureResyncer interface {
	ResyncFailed()
}
