package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Verdict is what happens to a flow. The zero value is none.
type Verdict uint8

const (
	Deliver Verdict = iota + 1 // to one of the endpoints
	Reject                     // refused at once, so that the client knows
	Drop                       // discarded silently
	NotOurs                    // left alone: neither translated nor refused by the service proxy
)

// String returns "deliver", "reject", "drop" or "not ours".
func (v Verdict) String() string {
	switch v {
	case Deliver:
		return "deliver"
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	case NotOurs:
		return "not ours"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Destination is an endpoint that a flow may reach.
type Destination struct {
	Endpoint netip.AddrPort
	// SourceNAT: the endpoint sees an address of the node instead of the client's. It depends on the endpoint: a pod
	// that reaches itself is always translated (S29).
	SourceNAT bool
}

// String returns for example "10.244.1.5:8080" or "10.244.1.5:8080 (source NAT)".
func (d Destination) String() string {
	if d.SourceNAT {
		return d.Endpoint.String() + " (source NAT)"
	}
	return d.Endpoint.String()
}

// Outcome is what must happen to a flow.
type Outcome struct {
	Flow    Flow
	Verdict Verdict
	// Endpoints are what the flow may reach, in [model.CompareTargets] order. Empty unless Verdict is Deliver.
	Endpoints []Destination
	// Port is the service port that the flow is for, zero where it is for none.
	Port model.PortName
	// Route is the one that applies, zero where none does.
	Route model.Route
	// AffinityTimeout is how long the client must be sent to the same endpoint, 0: no affinity. See After.
	AffinityTimeout time.Duration
	// Why explains the verdict for people, and names the rules it follows.
	Why string
	// AlsoAllowed are other outcomes that are just as right. They have no AlsoAllowed themselves.
	AlsoAllowed []Outcome
}

// String returns the outcome, the reason and the alternatives, one to a line.
func (o Outcome) String() string {
	var b strings.Builder
	b.WriteString(o.Verdict.String())
	for i, d := range o.Endpoints {
		b.WriteString([]string{" to ", " or "}[min(i, 1)] + d.String())
	}
	b.WriteString(": " + o.Why)
	for _, also := range o.AlsoAllowed {
		b.WriteString("\nor " + also.String())
	}
	return b.String()
}

// Contact is an earlier connection of the same client to the same service port, by whichever of its addresses.
type Contact struct {
	Endpoint netip.AddrPort
	Ago      time.Duration // since the connection began
}

// After says what must happen if the client was here before (S32). While the affinity lasts and the endpoint still is one
// that this flow may reach, it reaches that one again; else anything goes that went before. Contacts with several
// endpoints that all still hold can only come of routes with different endpoint sets; then each of them will do.
//
// Timers are coarse: who measures leaves a second or two on both sides of the timeout.
func (o Outcome) After(contacts ...Contact) Outcome {
	var kept []Destination
	for _, d := range o.Endpoints {
		if slices.ContainsFunc(contacts, func(c Contact) bool { return c.Endpoint == d.Endpoint && c.Ago < o.AffinityTimeout }) {
			kept = append(kept, d)
		}
	}
	if len(kept) > 0 {
		o.Endpoints = kept
		o.Why += fmt.Sprintf("; the client was there less than %v ago (S32)", o.AffinityTimeout)
	}
	o.AlsoAllowed = slices.Clone(o.AlsoAllowed)
	for i, also := range o.AlsoAllowed {
		o.AlsoAllowed[i] = also.After(contacts...)
	}
	return o
}
