package dataplane

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Statement is a part of a rule. The statements of a rule are evaluated in order, up to the first match that fails, and
// the rules of a chain up to the first verdict. This file has all types of statements.
type Statement interface {
	// append appends the statement as nft prints it.
	append(b []byte, f model.Family) []byte
}

// InSet matches packets whose key is in a set.
type InSet struct {
	// Set is the set as it was added to the table. It must not be a map.
	Set *Set
	// ID and Scope are the numbers of the key's fields Constant and Scope; without such a field they have no effect.
	ID, Scope uint32
}

// InPrefix matches packets whose source or destination address is in a prefix.
type InPrefix struct {
	// Field is SourceAddr or DestinationAddr.
	Field Field
	// Prefix is of the table's family. Bits after its length are ignored.
	Prefix netip.Prefix
	// Not matches packets whose address is outside the prefix.
	Not bool
}

// IsLocal matches packets whose source or destination address is one of the host's own.
type IsLocal struct {
	// Field is SourceAddr or DestinationAddr.
	Field Field
}

// FromInterface matches packets that come in through an interface.
type FromInterface struct {
	// Name is the name of the interface, which need not exist, or its prefix.
	Name string
	// Prefix: Name is the prefix of the names of all matching interfaces.
	Prefix bool
	// Not matches packets that come in through any other interface.
	Not bool
}

// IsProtocol matches packets of a protocol.
type IsProtocol struct {
	// Protocol is compared with the packet's transport protocol, after any IPv6 extension headers.
	Protocol model.Protocol
}

// IsDNATed matches packets of connections whose destination was translated.
type IsDNATed struct{}

// IsNew matches the packets that begin a connection.
type IsNew struct{}

// OneIn matches one packet in N, at random.
type OneIn struct {
	// N is at least 1, which matches every packet.
	N uint32
}

// Fraction matches a fraction of all packets, at random.
type Fraction struct {
	// Numerator and Denominator: it matches so many of so many packets. The denominator is at least 1.
	Numerator, Denominator uint32
}

// HasMark matches packets that have a bit of the packet mark set.
type HasMark struct {
	// Bit is the bit's value, such as 0x4000, and not its position. Of several bits, all have to be set.
	Bit uint32
}

// SetMark sets a bit of the packet mark, and leaves the other bits as they are.
type SetMark struct {
	// Bit is as in [HasMark].
	Bit uint32
}

// FlipMark inverts a bit of the packet mark, and leaves the other bits as they are.
type FlipMark struct {
	// Bit is as in [HasMark].
	Bit uint32
}

// Refresh adds the packet's key to a dynamic set, or restarts its timeout there. If the set is full, the rule ends
// here.
type Refresh struct {
	// Set is dynamic.
	Set *Set
	// ID and Scope are as in [InSet].
	ID, Scope uint32
	// Timeout is how long the key stays unless it is refreshed again. It has to be positive; nft prints milliseconds.
	Timeout time.Duration
}

// GotoMap goes to the chain that a verdict map has for the packet's key, if it has one.
type GotoMap struct {
	// Map is a verdict map.
	Map *Set
}

// DNATMap sends the connection to the address and port that a map has for the packet's key, if it has one. The rule
// needs an IsProtocol before it if there is no DestinationPort in the key.
type DNATMap struct {
	// Map gives a DestinationAddr and a DestinationPort. Its key has a Random field.
	Map *Set
	// ID is the number of the key's Constant field.
	ID uint32
	// N is the modulus of the Random field, at least 1: the key's random number is below it.
	N uint32
}

// DNAT sends the connection to a destination. The rule needs an IsProtocol before it.
type DNAT struct {
	// To is of the table's family.
	To netip.AddrPort
}

// KeepDestination makes the connection keep its destination: no later chain translates it, whatever its rules say. The
// kernel does the same after all chains, if no rule has done so.
type KeepDestination struct{}

// Masquerade rewrites the source of the connection to an address of the outgoing interface and a random port.
type Masquerade struct{}

// Goto continues in another chain, and does not return.
type Goto struct {
	// Chain is the name of a chain of the same table without a hook.
	Chain string
}

// Jump continues in another chain, and returns.
type Jump struct {
	// Chain is the name of a chain of the same table without a hook.
	Chain string
}

// Return continues after the [Jump] to this chain.
type Return struct{}

// Drop discards the packet.
type Drop struct{}

// Reject discards the packet and answers its sender with ICMP port unreachable.
type Reject struct{}

func not(n bool) string {
	if n {
		return "!= "
	}
	return ""
}

// text appends strings.
func text(b []byte, parts ...string) []byte {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func (s InSet) append(b []byte, f model.Family) []byte {
	return text(appendFields(b, f, s.Set.Key, numbers{id: s.ID, scope: s.Scope}), " @", s.Set.Name)
}

func (s InPrefix) append(b []byte, f model.Family) []byte {
	b = text(b, s.Field.info(f).text, " ", not(s.Not))
	if s.Prefix.IsSingleIP() {
		return s.Prefix.Addr().AppendTo(b)
	}
	return s.Prefix.Masked().AppendTo(b)
}

func (s IsLocal) append(b []byte, f model.Family) []byte {
	_, field, _ := strings.Cut(s.Field.info(f).text, " ")
	return text(b, "fib ", field, " type local")
}

func (s FromInterface) append(b []byte, _ model.Family) []byte {
	name := s.Name
	if s.Prefix {
		name += "*"
	}
	return fmt.Appendf(b, "iifname %s%q", not(s.Not), name)
}

func (s IsProtocol) append(b []byte, _ model.Family) []byte {
	return appendProtocolText(append(b, "meta l4proto "...), s.Protocol)
}

func (IsDNATed) append(b []byte, _ model.Family) []byte { return text(b, "ct status dnat") }

func (IsNew) append(b []byte, _ model.Family) []byte { return text(b, "ct state new") }

func (s OneIn) append(b []byte, _ model.Family) []byte {
	return append(strconv.AppendUint(append(b, "numgen random mod "...), uint64(s.N), 10), " 0"...)
}

func (s Fraction) append(b []byte, _ model.Family) []byte {
	b = strconv.AppendUint(append(b, "numgen random mod "...), uint64(s.Denominator), 10)
	return strconv.AppendUint(append(b, " < "...), uint64(s.Numerator), 10)
}

func (s HasMark) append(b []byte, _ model.Family) []byte {
	return fmt.Appendf(b, "meta mark & 0x%08x == 0x%08x", s.Bit, s.Bit)
}

func (s SetMark) append(b []byte, _ model.Family) []byte {
	return fmt.Appendf(b, "meta mark set meta mark | 0x%08x", s.Bit)
}

func (s FlipMark) append(b []byte, _ model.Family) []byte {
	return fmt.Appendf(b, "meta mark set meta mark ^ 0x%08x", s.Bit)
}

func (s Refresh) append(b []byte, f model.Family) []byte {
	b = appendFields(text(b, "update @", s.Set.Name, " { "), f, s.Set.Key, numbers{id: s.ID, scope: s.Scope})
	return text(appendDuration(text(b, " timeout "), s.Timeout), " }")
}

func (s GotoMap) append(b []byte, f model.Family) []byte {
	return text(appendFields(b, f, s.Map.Key, numbers{}), " vmap @", s.Map.Name)
}

func (s DNATMap) append(b []byte, f model.Family) []byte {
	b = text(b, "dnat ", familyText(f), " to ")
	return text(appendFields(b, f, s.Map.Key, numbers{id: s.ID, n: s.N}), " map @", s.Map.Name)
}

func (s DNAT) append(b []byte, _ model.Family) []byte { return s.To.AppendTo(append(b, "dnat to "...)) }

func (KeepDestination) append(b []byte, f model.Family) []byte {
	return text(b, "dnat to ", DestinationAddr.info(f).text)
}

func (Masquerade) append(b []byte, _ model.Family) []byte { return text(b, "masquerade fully-random") }

func (s Goto) append(b []byte, _ model.Family) []byte { return text(b, "goto ", s.Chain) }

func (s Jump) append(b []byte, _ model.Family) []byte { return text(b, "jump ", s.Chain) }

func (Return) append(b []byte, _ model.Family) []byte { return text(b, "return") }

func (Drop) append(b []byte, _ model.Family) []byte { return text(b, "drop") }

func (Reject) append(b []byte, _ model.Family) []byte { return text(b, "reject") }

// append appends the rule as nft prints it.
func (r *Rule) append(b []byte, f model.Family) []byte {
	for i, s := range r.Statements {
		if i > 0 {
			b = append(b, ' ')
		}
		b = s.append(b, f)
	}
	if r.Comment != "" {
		b = text(b, ` comment "`, r.Comment, `"`)
	}
	return b
}

// appendDuration writes a duration as nft does, for example "3h" or "1d30m5s".
func appendDuration(b []byte, d time.Duration) []byte {
	for _, u := range [...]struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.unit; n > 0 {
			b = append(strconv.AppendInt(b, int64(n), 10), u.name...)
			d -= n * u.unit
		}
	}
	return b
}
