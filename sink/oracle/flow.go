package oracle

import (
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// SourceKind says where a flow really comes from. A backend cannot always know that, which the oracle takes into
// account. The zero value is no source.
type SourceKind uint8

const (
	LocalPod  SourceKind = iota + 1 // a pod of this node with its own network namespace
	Node                            // the node: a host process, or a pod in the host's network namespace
	RemotePod                       // a pod of another node; its address was not translated on the way
	External                        // anything else, other nodes included
)

// String returns "local pod", "node", "remote pod" or "external".
func (k SourceKind) String() string {
	return name(k, "SourceKind", "local pod", "node", "remote pod", "external")
}

// MarshalText implements encoding.TextMarshaler.
func (k SourceKind) MarshalText() ([]byte, error) {
	return formatText(k, "source kind", LocalPod, External)
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (k *SourceKind) UnmarshalText(b []byte) error {
	return parseText(b, k, "source kind", LocalPod, External)
}

// Flow is the first packet of a new connection, as it arrives at the node or leaves one of its processes.
type Flow struct {
	// From is the real kind of the source.
	From SourceKind `json:"from"`
	// Source is the client's address, which a backend may or may not recognise.
	Source      netip.Addr     `json:"source"`
	Destination netip.AddrPort `json:"destination"`
	Protocol    model.Protocol `json:"protocol"`
}

// String returns a readable form, for example "local pod 10.244.1.5 -> 10.96.0.10:80/TCP".
func (f Flow) String() string {
	return fmt.Sprintf("%v %v -> %v/%v", f.From, f.Source, f.Destination, f.Protocol)
}

// Family returns the family of the flow's addresses.
func (f Flow) Family() model.Family { return model.FamilyOf(f.Destination.Addr()) }

// validate returns an error if f is not a valid flow.
func (f Flow) validate() error {
	var errs []error
	if f.From < LocalPod || f.From > External {
		errs = append(errs, fmt.Errorf("unknown source kind %d", uint8(f.From)))
	}
	if !f.Source.IsValid() || f.Source.Is4In6() {
		errs = append(errs, fmt.Errorf("source address %v is not valid", f.Source))
	}
	if to := f.Destination; !to.IsValid() || to.Addr().Is4In6() || to.Port() == 0 {
		errs = append(errs, fmt.Errorf("destination %v is not valid", to))
	}
	if model.FamilyOf(f.Source) != f.Family() {
		errs = append(errs, errors.New("source and destination are of different families"))
	}
	if _, err := f.Protocol.MarshalText(); err != nil {
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil
	}
	return fmt.Errorf("flow %v: %w", f, errors.Join(errs...))
}
