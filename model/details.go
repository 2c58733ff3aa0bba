package model

import (
	"encoding/json"
	"slices"
	"strings"
	"unique"
)

// EndpointDetails is what people know an endpoint by, and what its EndpointSlice says of it for other readers than a
// service proxy. Nothing in it has a say in where traffic goes: hints and zones are in effect in the endpoint's Sets.
type EndpointDetails struct {
	// TargetRef is the object behind the endpoint, a pod as a rule.
	TargetRef TargetRef `json:"targetRef,omitzero"`
	Hostname  string    `json:"hostname,omitempty"`
	// Zone is the zone that the endpoint is in.
	Zone string `json:"zone,omitempty"`
	// NodeHints and ZoneHints are the topology hints as they are given: the nodes and the zones that the endpoint is
	// meant for. Empty names are left out.
	NodeHints []string `json:"nodeHints,omitempty"`
	ZoneHints []string `json:"zoneHints,omitempty"`
}

// TargetRef names a Kubernetes object.
type TargetRef struct {
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	UID       string `json:"uid,omitempty"`
}

// String returns "kind namespace/name", or "" if nothing is named.
func (r TargetRef) String() string {
	if r == (TargetRef{}) {
		return ""
	}
	return strings.TrimSpace(r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/"))
}

// Details is an [EndpointDetails] that takes the space of a pointer and is compared with ==: two that say the same are
// equal. The zero value says nothing.
type Details struct{ shared unique.Handle[sharedDetails] }

// sharedDetails is EndpointDetails in a form that can be compared: lists are joined with listSeparator.
type sharedDetails struct {
	targetRef            TargetRef
	hostname, zone       string
	nodeHints, zoneHints string
}

const listSeparator = "\n" // in no name of a Kubernetes object

// NewDetails returns the value for an endpoint. Nothing of d is kept.
func NewDetails(d EndpointDetails) Details {
	shared := sharedDetails{
		targetRef: d.TargetRef, hostname: d.Hostname, zone: d.Zone,
		nodeHints: joinNames(d.NodeHints), zoneHints: joinNames(d.ZoneHints),
	}
	if shared == (sharedDetails{}) {
		return Details{}
	}
	return Details{unique.Make(shared)}
}

// Get returns what the value says. The lists are the caller's own.
func (d Details) Get() EndpointDetails {
	if d.IsZero() {
		return EndpointDetails{}
	}
	shared := d.shared.Value()
	return EndpointDetails{
		TargetRef: shared.targetRef, Hostname: shared.hostname, Zone: shared.zone,
		NodeHints: splitNames(shared.nodeHints), ZoneHints: splitNames(shared.zoneHints),
	}
}

// IsZero tells whether the value says nothing.
func (d Details) IsZero() bool { return d == Details{} }

// MarshalJSON writes what Get returns.
func (d Details) MarshalJSON() ([]byte, error) { return json.Marshal(d.Get()) }

// UnmarshalJSON reads what MarshalJSON writes. As everywhere in encoding/json, null changes nothing.
func (d *Details) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		return nil
	}
	var in EndpointDetails
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	*d = NewDetails(in)
	return nil
}

func joinNames(names []string) string {
	if slices.Contains(names, "") {
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	}
	return strings.Join(names, listSeparator)
}

func splitNames(joined string) []string {
	if joined == "" {
		return nil
	}
	return strings.Split(joined, listSeparator)
}
