package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Flow is a UDP flow in the connection-tracking table.
type Flow struct {
	// Source and Destination are those of the original packets.
	Source, Destination netip.AddrPort
	// ReplySource and ReplyDestination are those of the reply packets before translation. ReplySource is the flow's real
	// destination: the endpoint if a service proxy has rewritten the destination, otherwise Destination.
	ReplySource, ReplyDestination netip.AddrPort
}

// rewritten reports whether the packets' destination is translated.
func (f Flow) rewritten() bool { return f.ReplySource != f.Destination }

// String returns a readable form, for example "10.0.0.1:4000 -> 10.96.0.10:53 (10.1.0.2:53 -> 10.0.0.1:4000)".
func (f Flow) String() string {
	return fmt.Sprintf("%v -> %v (%v -> %v)", f.Source, f.Destination, f.ReplySource, f.ReplyDestination)
}

// Table is the part of a connection-tracking table that a clean-up needs. [Kernel] is the kernel's.
type Table interface {
	// DeleteUDP deletes the UDP flows of a family for which stale returns true. It returns the number of deleted flows,
	// even if it fails.
	//
	// Unless it returns an error, it calls stale at least once for every flow that matches a selection (for every flow if
	// there are no selections) and exists during the whole call. A table that cannot select calls it for other flows too.
	// The error is [ErrInterrupted] if the call should be repeated at once. A flow that is already gone is not an error.
	// Calls of stale are sequential and end before DeleteUDP returns; stale must not block.
	DeleteUDP(ctx context.Context, family model.Family, only []Selection, stale func(Flow) bool) (deleted int,
		err error)
}

// ErrInterrupted is returned by a [Table] if a pass did not see the whole table, because the table changed too much or
// a message was lost.
var ErrInterrupted = errors.New("the conntrack dump was interrupted")
