package oracle

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Verdict is what happens to a flow. The zero value is no verdict.
type Verdict uint8

const (
	Deliver Verdict = iota + 1 // to one of the endpoints
	Reject                     // refused at once, so that the client knows
	Drop                       // discarded silently
	NotOurs                    // left alone: neither translated nor refused by the service proxy
)

// String returns "deliver", "reject", "drop" or "not ours".
func (v Verdict) String() string {
	return name(v, "Verdict", "deliver", "reject", "drop", "not ours")
}

// MarshalText implements encoding.TextMarshaler.
func (v Verdict) MarshalText() ([]byte, error) {
	return formatText(v, "verdict", Deliver, NotOurs)
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (v *Verdict) UnmarshalText(b []byte) error {
	return parseText(b, v, "verdict", Deliver, NotOurs)
}

// Destination is an endpoint that a flow may reach.
type Destination struct {
	// Endpoint is the address and port that the flow arrives at.
	Endpoint netip.AddrPort `json:"endpoint"`
	// SourceNAT: the endpoint sees an address of the node instead of the client's. It depends on the endpoint: a pod
	// that reaches itself is always translated (S29).
	SourceNAT bool `json:"sourceNAT"`
	// Node is the node that the endpoint is on, and Pod the "namespace/name" of its pod, if the state has them.
	Node string `json:"node,omitempty"`
	Pod  string `json:"pod,omitempty"`
}

// String returns for example "10.244.1.5:8080" or "10.244.1.5:8080 (source NAT)".
func (d Destination) String() string {
	if d.SourceNAT {
		return d.Endpoint.String() + " (source NAT)"
	}
	return d.Endpoint.String()
}

// Reason is one step towards a verdict.
type Reason struct {
	// Text is a clause in English, without a full stop.
	Text string `json:"text"`
	// Rule is the number of the rule in docs/semantics.md, for example "S28"; "" if the step follows none.
	Rule string `json:"rule,omitempty"`
}

// String returns the text and, in brackets, the rule.
func (r Reason) String() string {
	if r.Rule == "" {
		return r.Text
	}
	return r.Text + " (" + r.Rule + ")"
}

// Outcome is what must happen to a flow.
type Outcome struct {
	// Flow is the flow in question.
	Flow Flow `json:"flow"`
	// Verdict is what happens to it. The zero value is no verdict.
	Verdict Verdict `json:"verdict"`
	// Endpoints are the endpoints that the flow may reach, in [model.CompareTargets] order. Empty unless Verdict is
	// Deliver.
	Endpoints []Destination `json:"endpoints,omitempty"`
	// Port is the service port that the flow is for, zero if it is for none.
	Port model.PortName `json:"port,omitzero"`
	// Route is the route that applies, zero if none does.
	Route model.Route `json:"route,omitzero"`
	// AffinityTimeout is how long the client must be sent to the same endpoint; 0: no affinity. See After. In JSON it
	// is a string like "3h0m0s".
	AffinityTimeout time.Duration `json:"-"`
	// Reasons are the steps to the verdict, in order.
	Reasons []Reason `json:"reasons"`
	// AlsoAllowed are other acceptable outcomes. They have no AlsoAllowed themselves.
	AlsoAllowed []Outcome `json:"alsoAllowed,omitempty"`
}

// brief returns the verdict and the endpoints.
func (o Outcome) brief() string {
	var b strings.Builder
	b.WriteString(o.Verdict.String())
	for i, d := range o.Endpoints {
		b.WriteString([]string{" to ", " or "}[min(i, 1)] + d.String())
	}
	return b.String()
}

// String returns the verdict with the endpoints, every reason on a line of its own, and then the same for the
// alternatives.
func (o Outcome) String() string {
	var b strings.Builder
	b.WriteString(o.brief())
	for _, r := range o.Reasons {
		b.WriteString("\n    " + r.String())
	}
	for _, also := range o.AlsoAllowed {
		b.WriteString("\nor " + also.String())
	}
	return b.String()
}

// plainOutcome is Outcome without its methods, so that encoding/json does not call them again.
type plainOutcome Outcome

type jsonOutcome struct {
	plainOutcome
	AffinityTimeout string `json:"affinityTimeout,omitempty"`
}

// MarshalJSON writes the affinity timeout as text, everything else as the fields' tags say.
func (o Outcome) MarshalJSON() ([]byte, error) {
	out := jsonOutcome{plainOutcome: plainOutcome(o)}
	if o.AffinityTimeout != 0 {
		out.AffinityTimeout = o.AffinityTimeout.String()
	}
	return json.Marshal(out)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (o *Outcome) UnmarshalJSON(b []byte) error {
	var in jsonOutcome
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*o = Outcome(in.plainOutcome)
	if in.AffinityTimeout == "" {
		return nil
	}
	var err error
	if o.AffinityTimeout, err = time.ParseDuration(in.AffinityTimeout); err != nil {
		return fmt.Errorf("affinity timeout: %w", err)
	}
	return nil
}

// Connection is an earlier connection of the same client to the same service port, through any of its addresses.
type Connection struct {
	Endpoint netip.AddrPort // the one that the connection reached
	Ago      time.Duration  // since the connection began
}

// After returns what must happen if the client has connected before (S32). While the affinity lasts and the flow may
// still reach that endpoint, it reaches the endpoint again; otherwise the outcome is unchanged. Connections to several
// endpoints are possible only if routes have different endpoint sets; then each of these endpoints is right.
//
// Timers are coarse: a test should leave a second or two on both sides of the timeout.
func (o Outcome) After(earlier ...Connection) Outcome {
	var kept []Destination
	for _, d := range o.Endpoints {
		if slices.ContainsFunc(earlier,
			func(c Connection) bool { return c.Endpoint == d.Endpoint && c.Ago < o.AffinityTimeout }) {
			kept = append(kept, d)
		}
	}
	if len(kept) > 0 {
		o.Endpoints = kept
		o.Reasons = append(slices.Clone(o.Reasons),
			Reason{fmt.Sprintf("the client last connected less than %v ago", o.AffinityTimeout), "S32"})
	}
	o.AlsoAllowed = slices.Clone(o.AlsoAllowed)
	for i, also := range o.AlsoAllowed {
		o.AlsoAllowed[i] = also.After(earlier...)
	}
	return o
}
