package dataplane

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Statement is a part of a rule. Those of a rule are evaluated in order, up to the first match that fails; the rules of
// a chain likewise, up to the first verdict. The types in this file are all there are.
type Statement interface {
	text(model.Family) string
}

// InSet matches packets whose key is in a set. ID is the number of the key's Constant field.
type InSet struct {
	Key []Field
	Set string
	Not bool
	ID  uint32
}

// InPrefix matches packets whose source or destination address is in a prefix.
type InPrefix struct {
	Field  Field
	Prefix netip.Prefix
	Not    bool
}

// IsLocal matches packets whose source or destination address is one of the host's own.
type IsLocal struct{ Field Field }

// FromInterface matches packets that come in through an interface, or, with Prefix, through one whose name starts so.
type FromInterface struct {
	Name   string
	Prefix bool
	Not    bool
}

// IsProtocol matches packets of a protocol.
type IsProtocol struct{ Protocol model.Protocol }

// IsDNATed matches packets of connections whose destination was translated.
type IsDNATed struct{}

// IsNew matches the packets that begin a connection.
type IsNew struct{}

// OneIn matches every Nth packet at random, on average.
type OneIn struct{ N uint32 }

// HasMark matches packets that have a bit of the packet mark set.
type HasMark struct{ Bit uint32 }

// SetMark sets a bit of the packet mark; FlipMark inverts it.
type SetMark struct{ Bit uint32 }

// FlipMark inverts a bit of the packet mark.
type FlipMark struct{ Bit uint32 }

// Refresh puts the packet's key into a dynamic set, or sets back its timeout there. ID is the number of the key's
// Constant field. If the set is full the rule goes no further.
type Refresh struct {
	Key     []Field
	Set     string
	ID      uint32
	Timeout time.Duration
}

// GotoMap goes to the chain that a verdict map has for the packet's key, if it has one.
type GotoMap struct {
	Key []Field
	Map string
}

// DNATMap sends the connection to the address and port that a map has for the packet's key, if it has one. ID is the
// number of the key's Constant field, N the modulus of its Random field. The rule needs an IsProtocol before it if
// there is no DestinationPort in the key.
type DNATMap struct {
	Key []Field
	ID  uint32
	N   uint32
	Map string
}

// DNAT sends the connection to a destination. The rule needs an IsProtocol before it.
type DNAT struct{ To netip.AddrPort }

// Masquerade makes the connection come from an address of the outgoing interface, from a random port.
type Masquerade struct{}

// Goto continues in another chain, and does not come back.
type Goto struct{ Chain string }

// Jump continues in another chain, and comes back.
type Jump struct{ Chain string }

// Drop ends the packet.
type Drop struct{}

// Reject ends the packet and tells its sender, with ICMP port unreachable.
type Reject struct{}

func not(n bool) string {
	if n {
		return "!= "
	}
	return ""
}

func (s InSet) text(f model.Family) string {
	return fieldsText(f, s.Key, numbers{id: s.ID}) + " " + not(s.Not) + "@" + s.Set
}

func (s InPrefix) text(f model.Family) string {
	p := s.Prefix.Masked().String()
	if s.Prefix.IsSingleIP() {
		p = s.Prefix.Addr().String()
	}
	return s.Field.info(f).text + " " + not(s.Not) + p
}

func (s IsLocal) text(f model.Family) string {
	_, field, _ := strings.Cut(s.Field.info(f).text, " ")
	return "fib " + field + " type local"
}

func (s FromInterface) text(model.Family) string {
	if s.Prefix {
		return fmt.Sprintf("iifname %s%q", not(s.Not), s.Name+"*")
	}
	return fmt.Sprintf("iifname %s%q", not(s.Not), s.Name)
}

func (s IsProtocol) text(model.Family) string {
	return "meta l4proto " + strings.ToLower(s.Protocol.String())
}

func (IsDNATed) text(model.Family) string { return "ct status dnat" }

func (IsNew) text(model.Family) string { return "ct state new" }

func (s OneIn) text(model.Family) string { return fmt.Sprintf("numgen random mod %d 0", s.N) }

func (s HasMark) text(model.Family) string {
	return fmt.Sprintf("meta mark & 0x%08x == 0x%08x", s.Bit, s.Bit)
}

func (s SetMark) text(model.Family) string {
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bit)
}

func (s FlipMark) text(model.Family) string {
	return fmt.Sprintf("meta mark set meta mark ^ 0x%08x", s.Bit)
}

func (s Refresh) text(f model.Family) string {
	key := fieldsText(f, s.Key, numbers{id: s.ID})
	return fmt.Sprintf("update @%s { %s timeout %s }", s.Set, key, durationText(s.Timeout))
}

func (s GotoMap) text(f model.Family) string {
	return fieldsText(f, s.Key, numbers{}) + " vmap @" + s.Map
}

func (s DNATMap) text(f model.Family) string {
	return "dnat " + familyText(f) + " to " + fieldsText(f, s.Key, numbers{s.ID, s.N}) + " map @" + s.Map
}

func (s DNAT) text(model.Family) string { return "dnat to " + s.To.String() }

func (Masquerade) text(model.Family) string { return "masquerade fully-random" }

func (s Goto) text(model.Family) string { return "goto " + s.Chain }

func (s Jump) text(model.Family) string { return "jump " + s.Chain }

func (Drop) text(model.Family) string { return "drop" }

func (Reject) text(model.Family) string { return "reject" }

// text returns the rule as nft prints it.
func (r *Rule) text(f model.Family) string {
	texts := make([]string, 0, len(r.Statements)+1)
	for _, s := range r.Statements {
		texts = append(texts, s.text(f))
	}
	if r.Comment != "" {
		texts = append(texts, `comment "`+r.Comment+`"`)
	}
	return strings.Join(texts, " ")
}

// durationText writes a duration as nft does, for example "3h" or "1d30m5s".
func durationText(d time.Duration) string {
	var b strings.Builder
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "d"}, {time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if n := d / u.unit; n > 0 {
			fmt.Fprintf(&b, "%d%s", n, u.name)
			d -= n * u.unit
		}
	}
	return b.String()
}
