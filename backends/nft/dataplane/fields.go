package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Field is a part of a key or value: something of a packet, or a random number. A [Set] declares its key by the fields
// that it is looked up with, as nft's "typeof" does.
type Field uint8

const (
	SourceAddr      Field = iota + 1 // ip saddr, ip6 saddr
	DestinationAddr                  // ip daddr, ip6 daddr
	Protocol                         // meta l4proto
	DestinationPort                  // th dport
	Random                           // numgen random mod N
	Constant                         // numgen random mod 1 offset ID: nft has no other way to write a number in a key
)

// numbers are what the fields of a key that are not of the packet give: Constant always id, Random a number below n.
type numbers struct{ id, n uint32 }

// numgen returns the modulus and the offset by which nft makes the number of a field.
func (v numbers) numgen(f Field) (modulus, offset uint32) {
	if f == Constant {
		return 1, v.id
	}
	return v.n, 0
}

// size returns the bytes of a field; in keys each takes a multiple of four.
func (f Field) size(family model.Family) int {
	switch f {
	case SourceAddr, DestinationAddr:
		if family == model.IPv6 {
			return 16
		}
		return 4
	case Protocol:
		return 1
	case DestinationPort:
		return 2
	}
	return 4
}

func padded(n int) int { return (n + 3) &^ 3 }

func fieldsSize(family model.Family, fields []Field) int {
	n := 0
	for _, f := range fields {
		n += padded(f.size(family))
	}
	return n
}

// text returns the field in nft's syntax.
func (f Field) text(family model.Family, v numbers) string {
	switch f {
	case SourceAddr:
		return familyText(family) + " saddr"
	case DestinationAddr:
		return familyText(family) + " daddr"
	case Protocol:
		return "meta l4proto"
	case DestinationPort:
		return "th dport"
	case Random, Constant:
		modulus, offset := v.numgen(f)
		if offset != 0 {
			return fmt.Sprintf("numgen random mod %d offset %d", modulus, offset)
		}
		return fmt.Sprintf("numgen random mod %d", modulus)
	}
	return fmt.Sprintf("unknown field %d", uint8(f))
}

func fieldsText(family model.Family, fields []Field, v numbers) string {
	texts := make([]string, len(fields))
	for i, f := range fields {
		texts[i] = f.text(family, v)
	}
	return strings.Join(texts, " . ")
}

// AppendAddr appends an address to a key or value.
func AppendAddr(b []byte, a netip.Addr) []byte {
	if a.Is4() {
		b4 := a.As4()
		return append(b, b4[:]...)
	}
	b16 := a.As16()
	return append(b, b16[:]...)
}

// AppendProtocol appends a protocol to a key or value.
func AppendProtocol(b []byte, p model.Protocol) []byte { return append(b, byte(p), 0, 0, 0) }

// AppendPort appends a port to a key or value.
func AppendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }

// AppendNumber appends a number that Random or Constant may give. It is in the byte order of the host, as the kernel has it.
func AppendNumber(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

// valueText returns the bytes of a key or value in nft's syntax, and what follows it.
func fieldsValueText(family model.Family, fields []Field, b string) (text, rest string) {
	var parts []string
	for _, f := range fields {
		size := f.size(family)
		if len(b) < padded(size) {
			return strings.Join(append(parts, "?"), " . "), ""
		}
		v := []byte(b[:size])
		b = b[padded(size):]
		switch f {
		case SourceAddr, DestinationAddr:
			a, _ := netip.AddrFromSlice(v)
			parts = append(parts, a.String())
		case Protocol:
			parts = append(parts, strings.ToLower(model.Protocol(v[0]).String()))
		case DestinationPort:
			parts = append(parts, fmt.Sprint(binary.BigEndian.Uint16(v)))
		case Random, Constant:
			parts = append(parts, fmt.Sprint(binary.NativeEndian.Uint32(v)))
		}
	}
	return strings.Join(parts, " . "), b
}
