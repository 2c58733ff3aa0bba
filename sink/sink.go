package sink

import (
	"context"
	"errors"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Sink receives the node-local state as a stream of changes that come in waves: any number of Set and Delete calls, then
// one Sync. It is what a backend implements.
//
// # What the calls mean
//
// The Set and Delete calls describe; they should not touch the dataplane, cannot fail, and return soon. Sync puts what
// has been described in force. Between two Syncs the state may be inconsistent (a service without its endpoints); at a
// Sync it is consistent and complete: the first Sync comes only after everything that the cluster holds has been
// described.
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
// An error from Sync means: not, or not wholly, in force. The runner calls Sync again later, after a growing pause and
// possibly with more changes before it, and does not repeat what it had described: the sink keeps it. A sink therefore
// compares with what was last applied, not with what it was last told. Before such a retry the runner calls
// [Resyncer.ForceResync] if the sink has it. A sink that serves both families and knows that only one failed says so
// with [FamilyError], and one that cannot ever succeed with [PermanentError]. ctx ends when the process is to stop; Sync should then return soon, with ctx's error.
//
// # Ownership and concurrency
//
// The values are immutable and the sink may keep them, see package model. All calls come from one goroutine at a time:
// an implementation needs no lock for its own state.
//
// # Restart
//
// A new process starts with an empty description and describes everything in its first wave. What the dataplane still
// does from an earlier run is the sink's to find, adopt and correct at the first Sync, without a gap in service. There is
// no call that says "clean up": state that is in force stays in force when the process ends.
type Sink interface {
	SetService(*model.Service)
	DeleteService(model.ServiceName)
	SetEndpoint(*model.Endpoint)
	DeleteEndpoint(model.EndpointKey)
	// Sync marks a consistent state: put it in force.
	Sync(ctx context.Context) error
}

// NodeSetter is implemented by sinks that want to know the node and the cluster's address plan.
type NodeSetter interface {
	SetNode(*model.Node)
}

// Resyncer is implemented by sinks that remember what they applied. ForceResync asks the next Sync to trust none of that
// memory: read what the dataplane has, compare everything, and correct it, without a gap in service. It is called from
// the same goroutine as Sink's methods, after an error and periodically.
type Resyncer interface {
	ForceResync()
}

// FamilyError is an error from Sync that concerns one IP family only: the other one is in force. Sync may join several
// with errors.Join. An error that is none, or holds anything else besides, concerns both families.
type FamilyError struct {
	Family model.Family
	Err    error
}

func (e *FamilyError) Error() string { return e.Family.String() + ": " + e.Err.Error() }

// Unwrap returns the error without the family.
func (e *FamilyError) Unwrap() error { return e.Err }

// PermanentError is an error from Sync that no retry can mend, such as a kernel without the feature that the sink is built on.
// The runner ends with it.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }

// Unwrap returns the error itself.
func (e *PermanentError) Unwrap() error { return e.Err }

// FailedFamilies tells which families an error from Sync concerns.
func FailedFamilies(err error) (v4, v6 bool) {
	if err == nil {
		return false, false
	}
	if fe, ok := err.(*FamilyError); ok {
		return fe.Family != model.IPv6, fe.Family != model.IPv4
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			e4, e6 := FailedFamilies(e)
			v4, v6 = v4 || e4, v6 || e6
		}
		return v4, v6
	}
	if inner := errors.Unwrap(err); inner != nil {
		return FailedFamilies(inner)
	}
	return true, true
}
