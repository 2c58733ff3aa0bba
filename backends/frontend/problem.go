package frontend

import (
	"cmp"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Problem is a part of a service port that is not served, with the reason. Problems are comparable.
type Problem struct {
	// Family is the one in which it is not served. The other may be.
	Family model.Family
	// Port is the service port that it is a part of.
	Port model.PortName
	// Reason is why, for programs and as the reason of an Event.
	Reason Reason
	// Owner has the address, for AddressInUse.
	Owner model.PortName
	// Message says it in words.
	Message string
}

// key returns what makes it the same problem, which is reported once: its message may change.
func (p Problem) key() Problem { return Problem{Family: p.Family, Port: p.Port, Reason: p.Reason} }

func (p Problem) compare(o Problem) int {
	return cmp.Or(p.Port.Compare(o.Port), cmp.Compare(p.Family, o.Family), cmp.Compare(p.Reason, o.Reason),
		p.Owner.Compare(o.Owner))
}

// Reason says why something is not served, in a form that fits as the reason of a Kubernetes Event.
type Reason string

const (
	// AddressInUse: another service port has one or more of its addresses or its node port. It is logged once for each
	// pair of service ports; the message names one of the addresses.
	AddressInUse Reason = "AddressInUse"
	// InvalidPort: it has no number or protocol.
	InvalidPort Reason = "InvalidPort"
	// DuplicatePort: the service has another port of its name and protocol.
	DuplicatePort Reason = "DuplicatePort"
	// InvalidEndpoint: one or more of its endpoints have no address or port number.
	InvalidEndpoint Reason = "InvalidEndpoint"
	// TooManyFrontends: its service has more than 131,072 of them in a family.
	TooManyFrontends Reason = "TooManyFrontends"
)
