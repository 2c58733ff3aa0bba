package frontend

import "sigs.k8s.io/kube-proxy-lib/model"

// Problem is a part of a service port that is not served, such as an address or its session affinity, with the reason.
// Problems are comparable.
type Problem struct {
	// Family is the family in which it is not served. It may be served in the other one.
	Family model.Family
	// Port is the service port. For HealthCheckPortInUse it is the service's first one.
	Port model.PortName
	// Reason is the reason, for programs and Events.
	Reason Reason
	// Owner has the address, for AddressInUse and HealthCheckPortInUse.
	Owner model.PortName
	// Message is the problem in words.
	Message string
}

// Error returns the message: problems with [Limits] are errors of Sync as well.
func (p Problem) Error() string { return p.Message }

// key identifies the problem, which is reported once: its message may change.
func (p Problem) key() Problem { return Problem{Family: p.Family, Port: p.Port, Reason: p.Reason} }

// Reason says why something is not served, in a form that fits as the reason of a Kubernetes Event.
type Reason string

const (
	// AddressInUse: another service port owns one or more of its addresses or its node port. It is reported once for
	// each pair of service ports in a wave, when one begins to ask for it or loses it; the message names one of the
	// addresses. If it then passes to another owner, it is reported again for the first eight of the ports that wait.
	AddressInUse Reason = "AddressInUse"
	// HealthCheckPortInUse: another service port owns the number of the service's healthCheckNodePort as a node port, and
	// gets what load balancers send there (S38).
	HealthCheckPortInUse Reason = "HealthCheckPortInUse"
	// InvalidPort: it has no number or protocol.
	InvalidPort Reason = "InvalidPort"
	// DuplicatePort: the service has another port of its name and protocol.
	DuplicatePort Reason = "DuplicatePort"
	// InvalidEndpoint: one or more of its endpoints have no address or port number.
	InvalidEndpoint Reason = "InvalidEndpoint"
	// TooManyFrontends: its service, or namespace, has more of them in a family than [Limits] allow.
	TooManyFrontends Reason = "TooManyFrontends"
	// TooManySourceRanges: its service, or namespace, has more of them in a family than [Limits] allow.
	TooManySourceRanges Reason = "TooManySourceRanges"
	// TooManyDestinations: its service, or namespace, has more endpoints times frontends in a family than [Limits] allow.
	TooManyDestinations Reason = "TooManyDestinations"
	// TooManyStickyEndpoints: it is served without session affinity, because its service, or namespace, has more endpoints
	// with affinity in a family than [Limits] allow: see [Options].Sticky.
	TooManyStickyEndpoints Reason = "TooManyStickyEndpoints"
	// TooManyStickyPorts: the same for ports with affinity that have endpoints.
	TooManyStickyPorts Reason = "TooManyStickyPorts"
	// TooManyEndpoints: its service, or namespace, asks for more than [localstate.EndpointLimits] allow.
	TooManyEndpoints Reason = "TooManyEndpoints"
)
