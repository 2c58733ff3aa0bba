package model

import (
	"fmt"
	"net/netip"
)

// Family is an IP family. The zero value is no family.
type Family uint8

const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// Families lists both IP families, IPv4 first.
func Families() [2]Family { return [2]Family{IPv4, IPv6} }

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

// Protocol is a transport protocol, by its IANA number. The zero value is no protocol.
type Protocol uint8

const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

var protocolText = textTable[Protocol]{"protocol", []textEntry[Protocol]{{TCP, "TCP"}, {UDP, "UDP"}, {SCTP, "SCTP"}}}

// String returns "TCP", "UDP" or "SCTP".
func (p Protocol) String() string { return protocolText.format(p) }

// MarshalText implements encoding.TextMarshaler.
func (p Protocol) MarshalText() ([]byte, error) { return protocolText.marshal(p) }

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (p *Protocol) UnmarshalText(b []byte) error { return protocolText.unmarshal(b, p) }

// ParseProtocol returns the protocol with that name ("TCP", "UDP" or "SCTP").
func ParseProtocol(name string) (Protocol, error) {
	var p Protocol
	err := p.UnmarshalText([]byte(name))
	return p, err
}

// TrafficPolicy says whether traffic may leave the node for an endpoint. The zero value is Cluster, Kubernetes' default.
type TrafficPolicy uint8

const (
	TrafficPolicyCluster TrafficPolicy = iota // any endpoint
	TrafficPolicyLocal                        // endpoints on this node only
)

var trafficPolicyText = textTable[TrafficPolicy]{"traffic policy", []textEntry[TrafficPolicy]{
	{TrafficPolicyCluster, "Cluster"}, {TrafficPolicyLocal, "Local"}}}

// String returns "Cluster" or "Local".
func (p TrafficPolicy) String() string { return trafficPolicyText.format(p) }

// MarshalText implements encoding.TextMarshaler.
func (p TrafficPolicy) MarshalText() ([]byte, error) { return trafficPolicyText.marshal(p) }

// UnmarshalText implements encoding.TextUnmarshaler; it takes what String returns.
func (p *TrafficPolicy) UnmarshalText(b []byte) error { return trafficPolicyText.unmarshal(b, p) }

// textEntry and textTable give the small enumerations of this package one implementation of their text form.
type textEntry[T comparable] struct {
	value T
	text  string
}

type textTable[T comparable] struct {
	kind    string
	entries []textEntry[T]
}

func (t textTable[T]) format(v T) string {
	for _, e := range t.entries {
		if e.value == v {
			return e.text
		}
	}
	return fmt.Sprintf("unknown %s %d", t.kind, any(v))
}

func (t textTable[T]) marshal(v T) ([]byte, error) {
	for _, e := range t.entries {
		if e.value == v {
			return []byte(e.text), nil
		}
	}
	return nil, fmt.Errorf("unknown %s %d", t.kind, any(v))
}

func (t textTable[T]) unmarshal(b []byte, v *T) error {
	for _, e := range t.entries {
		if e.text == string(b) {
			*v = e.value
			return nil
		}
	}
	return fmt.Errorf("unknown %s %q", t.kind, b)
}
