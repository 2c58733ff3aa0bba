package model

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// Family is an IP family. The zero value is no family.
type Family uint8

// The numbers are the versions of the protocol, not those of the kernel's address families.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both IP families, IPv4 first.
func Families() []Family { return []Family{IPv4, IPv6} }

// FamilyOf returns the family of an address, or 0 for the zero Addr. An IPv4-mapped IPv6 address is IPv6: unmap
// addresses before they enter the model.
func FamilyOf(addr netip.Addr) Family {
	switch {
	case addr.Is4():
		return IPv4
	case addr.Is6():
		return IPv6
	}
	return 0
}

// Loopback returns the family's loopback addresses.
func (f Family) Loopback() netip.Prefix {
	if f == IPv6 {
		return netip.MustParsePrefix("::1/128")
	}
	return netip.MustParsePrefix("127.0.0.0/8")
}

// Everything returns the range of all addresses of the family.
func (f Family) Everything() netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
}

// Set returns the set with only this family.
func (f Family) Set() FamilySet { return 1 << f }

// FamilySet is a set of IP families. The zero value is empty; | unites sets.
type FamilySet uint8

// BothFamilies has both.
const BothFamilies = FamilySet(1<<IPv4 | 1<<IPv6)

// Has reports whether a family is in the set.
func (s FamilySet) Has(f Family) bool { return s&f.Set() != 0 }

// PerFamily has a value for each IP family.
type PerFamily[T any] struct {
	// IPv4 and IPv6 are the families' values.
	IPv4 T `json:"IPv4,omitzero"`
	IPv6 T `json:"IPv6,omitzero"`
}

// At returns the place of a family's value. Whatever is not IPv4 counts as IPv6.
func (p *PerFamily[T]) At(f Family) *T {
	if f == IPv4 {
		return &p.IPv4
	}
	return &p.IPv6
}

// String returns "IPv4" or "IPv6".
func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// ComparePrefixes orders by address, IPv4 first, then by length, so that a prefix comes before those that it contains.
// It does what netip.Prefix.Compare does in Go 1.26, for older versions.
func ComparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Masked().Addr().Compare(b.Masked().Addr()), cmp.Compare(a.Bits(), b.Bits()),
		a.Addr().Compare(b.Addr()))
}

// PrefixesOf returns the prefixes of a family, masked, sorted and without duplicates.
func PrefixesOf(f Family, prefixes []netip.Prefix) []netip.Prefix {
	var list []netip.Prefix
	for _, p := range prefixes {
		if FamilyOf(p.Addr()) == f {
			list = append(list, p.Masked())
		}
	}
	slices.SortFunc(list, ComparePrefixes)
	return slices.Compact(list)
}

// Protocol is a transport protocol, by its IANA number. The zero value is no protocol.
type Protocol uint8

// The protocols that Services have. Others are not in the model (S4).
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns "TCP", "UDP" or "SCTP".
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) {
	return formatText(p, "protocol", TCP, UDP, SCTP)
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (p *Protocol) UnmarshalText(b []byte) error {
	return parseText(b, p, "protocol", TCP, UDP, SCTP)
}

// ParseProtocol returns the protocol with that name ("TCP", "UDP" or "SCTP").
func ParseProtocol(name string) (Protocol, error) {
	var p Protocol
	err := p.UnmarshalText([]byte(name))
	return p, err
}

// ServiceType is how a service is published. The zero value means unknown.
type ServiceType uint8

const (
	ServiceTypeUnknown      ServiceType = iota // not set
	ServiceTypeClusterIP                       // Kubernetes' default; headless services are of this type, too
	ServiceTypeNodePort                        // also has a port on the nodes' addresses
	ServiceTypeLoadBalancer                    // also has addresses of a load balancer, and may have node ports
	ServiceTypeExternalName                    // a DNS alias, without traffic
)

// String returns the name in the Kubernetes API, "" for the zero value.
func (t ServiceType) String() string {
	return name(t, "ServiceType", "", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
}

func serviceTypes() []ServiceType {
	return []ServiceType{ServiceTypeUnknown, ServiceTypeClusterIP, ServiceTypeNodePort, ServiceTypeLoadBalancer,
		ServiceTypeExternalName}
}

// MarshalText implements encoding.TextMarshaler.
func (t ServiceType) MarshalText() ([]byte, error) {
	return formatText(t, "service type", serviceTypes()...)
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (t *ServiceType) UnmarshalText(b []byte) error {
	return parseText(b, t, "service type", serviceTypes()...)
}

// TrafficPolicy says whether traffic may leave the node for an endpoint. The zero value is Cluster, Kubernetes'
// default.
type TrafficPolicy uint8

const (
	TrafficPolicyCluster TrafficPolicy = iota // any endpoint
	TrafficPolicyLocal                        // endpoints on this node only
)

// String returns "Cluster" or "Local".
func (p TrafficPolicy) String() string {
	return name(p, "TrafficPolicy", "Cluster", "Local")
}

// MarshalText implements encoding.TextMarshaler.
func (p TrafficPolicy) MarshalText() ([]byte, error) {
	return formatText(p, "traffic policy", TrafficPolicyCluster, TrafficPolicyLocal)
}

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (p *TrafficPolicy) UnmarshalText(b []byte) error {
	return parseText(b, p, "traffic policy", TrafficPolicyCluster, TrafficPolicyLocal)
}

// name returns the name of a value of an enumeration that counts from 0.
func name[T ~uint8](v T, kind string, names ...string) string {
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, uint8(v))
}

// formatText implements MarshalText for the small enumerations of this package: it returns String for known values.
func formatText[T interface {
	comparable
	fmt.Stringer
}](v T, kind string, known ...T) ([]byte, error) {
	if !slices.Contains(known, v) {
		return nil, fmt.Errorf("unknown %s: %v", kind, v)
	}
	return []byte(v.String()), nil
}

// parseText implements UnmarshalText for them.
func parseText[T fmt.Stringer](text []byte, v *T, kind string, known ...T) error {
	for _, k := range known {
		if k.String() == string(text) {
			*v = k
			return nil
		}
	}
	return fmt.Errorf("unknown %s %q", kind, text)
}
