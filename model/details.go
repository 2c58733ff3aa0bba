package model

import (
	"encoding/json"
	"slices"
	"strings"
	"unique"
)

// EndpointDetails identifies an endpoint for people, and has the fields of its EndpointSlice that a service proxy does
// not need. Nothing in it affects where traffic goes: the endpoint's Sets already take hints and zones into account.
type EndpointDetails struct {
	// TargetRef is the object behind the endpoint, usually a pod.
	TargetRef TargetRef `json:"targetRef,omitzero"`
	// Hostname is the name that the endpoint has in the DNS of a headless service, "" if it has none.
	Hostname string `json:"hostname,omitempty"`
	// Zone is the endpoint's zone.
	Zone string `json:"zone,omitempty"`
	// NodeHints and ZoneHints are the topology hints: the nodes and the zones that the endpoint is meant for. Empty
	// names are left out.
	NodeHints []string `json:"nodeHints,omitempty"`
	ZoneHints []string `json:"zoneHints,omitempty"`
}

// TargetRef names a Kubernetes object. Fields that are not known are empty.
type TargetRef struct {
	// Kind is as in the API, for example "Pod".
	Kind      string `json:"kind,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// UID distinguishes the object from an earlier one with the same name.
	UID string `json:"uid,omitempty"`
}

// String returns "kind namespace/name", or "" for the zero value.
func (r TargetRef) String() string {
	if r == (TargetRef{}) {
		return ""
	}
	return strings.TrimSpace(r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/"))
}

// Details is an [EndpointDetails] the size of a pointer. Values with the same content are equal by ==. The zero value
// is empty.
type Details struct{ shared unique.Handle[sharedDetails] }

// sharedDetails is EndpointDetails in a form that can be compared: lists are joined with listSeparator.
type sharedDetails struct {
	targetRef            TargetRef
	hostname, zone       string
	nodeHints, zoneHints string
}

const listSeparator = "\n" // occurs in no name of a Kubernetes object

// NewDetails returns the Details for d. It keeps no reference to d.
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

// Get returns the content. The lists belong to the caller.
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

// IsZero reports whether the value is empty.
func (d Details) IsZero() bool { return d == Details{} }

// MarshalJSON writes what Get returns.
func (d Details) MarshalJSON() ([]byte, error) { return json.Marshal(d.Get()) }

// UnmarshalJSON reads what MarshalJSON writes. As usual in encoding/json, null changes nothing.
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
