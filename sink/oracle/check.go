package oracle

import (
	"fmt"
	"net/netip"
)

// Observation is what a test saw happen to a flow.
type Observation struct {
	// Verdict is Deliver, Reject, Drop, or NotOurs for a flow that went on unchanged.
	Verdict Verdict
	// Endpoint is the endpoint that answered, and Source the client's address as that endpoint saw it. They are set only
	// if Verdict is Deliver.
	Endpoint netip.AddrPort
	Source   netip.Addr
}

// String returns for example "delivered to 10.244.1.5:8080, which saw 192.0.2.1" or "reject".
func (o Observation) String() string {
	if o.Verdict == Deliver {
		return fmt.Sprintf("delivered to %v, which saw %v", o.Endpoint, o.Source)
	}
	return o.Verdict.String()
}

// Check compares an observation with the expected outcome, and accepts any of the alternatives. A flow that is not ours
// must pass unchanged, or reach its destination with its own source address. If it is for an address of the host, the
// node may refuse it, as it does if no process listens there. Any other refusal or drop of such a flow is the backend's
// fault. The error says what was expected and why.
func (o *Oracle) Check(want Outcome, seen Observation) error {
	if o.matches(want, seen) {
		return nil
	}
	for _, also := range want.AlsoAllowed {
		if o.matches(also, seen) {
			return nil
		}
	}
	return fmt.Errorf("%v\nseen: %v\nwant: %v", want.Flow, seen, want)
}

func (o *Oracle) matches(want Outcome, seen Observation) bool {
	switch {
	case want.Verdict == NotOurs && seen.Verdict == Deliver:
		return seen.Endpoint == want.Flow.Destination && seen.Source == want.Flow.Source
	case want.Verdict == NotOurs:
		return seen.Verdict == NotOurs || seen.Verdict == Reject && o.isHostAddress(want.Flow.Destination.Addr())
	case want.Verdict != Deliver || seen.Verdict != Deliver:
		return want.Verdict == seen.Verdict
	}
	for _, d := range want.Endpoints {
		if d.Endpoint == seen.Endpoint {
			if d.SourceNAT {
				return o.isOnInterface(seen.Source)
			}
			return seen.Source == want.Flow.Source
		}
	}
	return false
}
