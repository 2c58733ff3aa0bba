package sink

import (
	"context"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Sink receives the node-local state as a stream of changes in waves: any number of Set and Delete calls, then one
// Sync. A backend implements it.
//
// # The calls
//
// The Set and Delete calls describe the state. They should not touch the dataplane, cannot fail, and should return
// soon. Sync applies what has been described. Between two Syncs the state may be inconsistent (a service without its
// endpoints); at a Sync it is consistent and complete: the first Sync comes only after the whole cluster has been
// described.
//
// # Order within a wave
//
// At any moment every endpoint that has been set belongs to a port of a service that has been set. The order is:
//
//  1. [NodeSetter.SetNode], if the sink has it and the node changed, and always in the first wave.
//  2. For each service to be deleted, ordered by name: DeleteEndpoint for its endpoints, then DeleteService.
//  3. For each service that is new or changed, ordered by name: DeleteEndpoint for endpoints that are gone, SetService
//     if the service itself changed, SetEndpoint for endpoints that are new or changed. Endpoints are in
//     [model.EndpointKey] order.
//  4. Sync.
//
// Addresses may move between services within a wave, so a sink that keys on addresses resolves them at Sync.
//
// # Idempotency
//
// Set means create or replace: setting what already exists, even unchanged, is not an error. Nor is deleting what does
// not exist. Run does not make calls that change nothing, but middleware and tests may.
//
// # Errors
//
// An error from Sync means that not everything is applied. Sync is called again, and the sink has to keep what has been
// described: it is not repeated. A sink therefore compares with what was last applied, not with what was last
// described. Until everything is applied there are two kinds of Sync:
//
//   - A Sync for further changes stays incremental: the sink applies them wherever nothing has failed. It may try again
//     what has failed, or leave it alone until the retry and return the error again.
//   - The retry comes after a pause that grows with each failure. Just before it, the caller calls
//     [FailureResyncer.ResyncFailed] if the sink has it, otherwise [Resyncer.ForceResync] if the sink has that.
//
// A sink that serves both families returns a [FamilyError] if only one failed. It returns a [PortError] for each
// service port that it could not apply while it applied everything else; for these there is no ForceResync. It returns
// a [PermanentError] if it can never succeed. ctx ends when the process should stop; Sync should then return soon, with
// ctx's error.
//
// # Optional interfaces
//
// The caller checks whether the sink also implements [NodeSetter], [Resyncer], [FailureResyncer] and [Yielder]. A
// struct that embeds a Sink has only the methods of this interface: it hides the optional ones, so that the inner sink
// never receives the node and is never resynced. Middleware should embed a [Forward] instead; LostAbilities in
// testing/fakemodel finds methods that are hidden.
//
// # Ownership and concurrency
//
// The values are immutable and the sink may keep them, see package model. Calls are never concurrent: an implementation
// needs no lock for its own state.
//
// # Restart
//
// A new process describes everything in its first wave. At the first Sync the sink has to find what the dataplane still
// holds from an earlier run, adopt it and correct it, without a gap in service. The interface has no call for cleaning
// up: what is applied stays when the process ends.
type Sink interface {
	// SetService creates a service, or replaces the one with its name. It is never nil.
	SetService(*model.Service)
	// DeleteService deletes a service. Its endpoints have been deleted before.
	DeleteService(model.ServiceName)
	// SetEndpoint creates an endpoint, or replaces the one with its key. It is never nil.
	SetEndpoint(*model.Endpoint)
	// DeleteEndpoint deletes an endpoint.
	DeleteEndpoint(model.EndpointKey)
	// Sync marks a consistent state: apply it.
	Sync(ctx context.Context) error
}

// NodeSetter is implemented by sinks that need the node and the cluster's address ranges.
type NodeSetter interface {
	// SetNode replaces the node. It is never nil.
	SetNode(*model.Node)
}

// Resyncer is implemented by sinks that remember what they applied.
type Resyncer interface {
	// ForceResync asks the next Sync not to trust that memory: read what the dataplane has, compare everything, and
	// correct it, without a gap in service. If that Sync fails, the request stays. It is called from the same goroutine
	// as Sink's methods: periodically, and before a retry if the sink is not a [FailureResyncer].
	ForceResync()
}

// FailureResyncer is implemented by sinks that can retry only what failed, such as one family, one sink of a [Tee] or a
// service port.
type FailureResyncer interface {
	// ResyncFailed asks the next Sync to apply in full what failed in the last one, without trusting the memory of it;
	// what succeeded stays incremental. If nothing failed it has no effect. It is called from the same goroutine as
	// Sink's methods, before a retry.
	ResyncFailed()
}

// Yielder is implemented by sinks whose dataplane other programs cannot read while it changes, such as nftables: a
// listing begins again whenever anything changes meanwhile.
type Yielder interface {
	// Yield returns how long the next Sync should wait, because another program is reading the dataplane; 0 if none is. It
	// must not block. It is called before a Sync that follows soon after another one, from the same goroutine as Sink's
	// methods, and again when that time is over. The caller bounds how long it waits: Run waits until 45 s after the last
	// Sync at most, and then applies changes for a while before it waits again.
	Yield() time.Duration
}
