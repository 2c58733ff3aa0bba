package dataplane

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Field is a part of a key or value: a field of a packet, or a number. A [Set] declares its key by the fields that it
// is looked up with, like nft's "typeof".
type Field uint8

const (
	SourceAddr      Field = iota + 1 // ip saddr, ip6 saddr
	DestinationAddr                  // ip daddr, ip6 daddr
	Protocol                         // meta l4proto
	DestinationPort                  // th dport
	Random                           // numgen random mod N
	Constant                         // numgen random mod 1 offset ID: nft has no other way to write a number in a key
	Scope                            // the same with another number
)

// fieldInfo is how nft and the kernel describe a field.
type fieldInfo struct {
	text   string // in nft's syntax, without the numbers of Random, Constant and Scope
	size   int    // in bytes; in keys each field takes a multiple of four
	typ    uint32 // nft's number for its type
	offset uint32 // in the header that it is in
	// header and field identify it in user data: nft's enum proto_desc_id, and its numbers for the fields of each. The
	// format is stable: nft reads that of older versions. 0: it is in no header.
	header, field uint32
}

func (f Field) info(family model.Family) fieldInfo {
	const ipv4Addr, ipv6Addr, inetProto, inetService = 7, 8, 12, 13
	const transport, ip, ip6 = 11, 12, 13
	switch isIPv6 := family == model.IPv6; {
	case f == SourceAddr && isIPv6:
		return fieldInfo{"ip6 saddr", 16, ipv6Addr, 8, ip6, 8}
	case f == SourceAddr:
		return fieldInfo{"ip saddr", 4, ipv4Addr, 12, ip, 11}
	case f == DestinationAddr && isIPv6:
		return fieldInfo{"ip6 daddr", 16, ipv6Addr, 24, ip6, 9}
	case f == DestinationAddr:
		return fieldInfo{"ip daddr", 4, ipv4Addr, 16, ip, 12}
	case f == Protocol:
		return fieldInfo{"meta l4proto", 1, inetProto, 0, 0, 0}
	case f == DestinationPort:
		return fieldInfo{"th dport", 2, inetService, 2, transport, 2}
	}
	return fieldInfo{"numgen random", 4, typeMark, 0, 0, 0}
}

// A number is of nft's type integer, which has no size of its own. nft finds the size in the user data, except for
// 0.9.8: it does not know numgen there, falls back to the type that the kernel has, and aborts if that has no size,
// whatever it was asked to do. So the kernel has the type of packet marks, numbers of four bytes in the same byte
// order.
const (
	typeInteger = 4
	typeMark    = 19
)

// isNumber reports whether the field does not come from the packet.
func (f Field) isNumber() bool { return f == Random || f == Constant || f == Scope }

func padded(n int) int { return (n + 3) &^ 3 }

func fieldsSize(family model.Family, fields []Field) int {
	n := 0
	for _, f := range fields {
		n += padded(f.info(family).size)
	}
	return n
}

// numbers are the values of the fields of a key that do not come from the packet: Constant gives id, Scope gives scope,
// Random a number below n.
type numbers struct{ id, scope, n uint32 }

// numgen returns the modulus and the offset by which nft makes the number of a field.
func (v numbers) numgen(f Field) (modulus, offset uint32) {
	switch f {
	case Constant:
		return 1, v.id
	case Scope:
		return 1, v.scope
	}
	return v.n, 0
}

// appendFields appends a key in nft's syntax.
func appendFields(b []byte, family model.Family, fields []Field, v numbers) []byte {
	for i, f := range fields {
		if i > 0 {
			b = append(b, " . "...)
		}
		b = append(b, f.info(family).text...)
		if !f.isNumber() {
			continue
		}
		modulus, offset := v.numgen(f)
		b = strconv.AppendUint(append(b, " mod "...), uint64(modulus), 10)
		if offset != 0 {
			b = strconv.AppendUint(append(b, " offset "...), uint64(offset), 10)
		}
	}
	return b
}

func appendProtocolText(b []byte, p model.Protocol) []byte {
	for _, c := range []byte(p.String()) {
		b = append(b, byte(unicode.ToLower(rune(c))))
	}
	return b
}

// AppendAddr appends an address to a key or value.
func AppendAddr(b []byte, a netip.Addr) []byte {
	b, _ = a.WithZone("").AppendBinary(b) // which never fails
	return b
}

// AppendProtocol appends a protocol to a key or value.
func AppendProtocol(b []byte, p model.Protocol) []byte { return append(b, byte(p), 0, 0, 0) }

// AppendPort appends a port to a key or value.
func AppendPort(b []byte, port uint16) []byte { return append(b, byte(port>>8), byte(port), 0, 0) }

// AppendNumber appends a number that Random, Constant or Scope may give. It is in the byte order of the host, as in the
// kernel.
func AppendNumber(b []byte, n uint32) []byte { return binary.NativeEndian.AppendUint32(b, n) }

// fieldsValueText returns a key or value in nft's syntax.
func fieldsValueText(family model.Family, fields []Field, b string) string {
	var parts []string
	for _, f := range fields {
		size := f.info(family).size
		if len(b) < padded(size) {
			return strings.Join(append(parts, "?"), " . ")
		}
		v := []byte(b[:size])
		b = b[padded(size):]
		switch f {
		case SourceAddr, DestinationAddr:
			a, _ := netip.AddrFromSlice(v)
			parts = append(parts, a.String())
		case Protocol:
			parts = append(parts, string(appendProtocolText(nil, model.Protocol(v[0]))))
		case DestinationPort:
			parts = append(parts, fmt.Sprint(binary.BigEndian.Uint16(v)))
		case Random, Constant, Scope:
			parts = append(parts, fmt.Sprint(binary.NativeEndian.Uint32(v)))
		}
	}
	return strings.Join(parts, " . ")
}
