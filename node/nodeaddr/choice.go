package nodeaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Choice selects the host's addresses that serve node ports (S35): those that any of its fields selects. A family to
// which no field applies has all its addresses selected: so does every family in the zero value, and IPv6 if CIDRs is
// only 127.0.0.0/8. [Tracker] follows changes.
type Choice struct {
	// CIDRs select the host's addresses in these ranges. Each applies only to its own family.
	CIDRs []netip.Prefix
	// Primary selects the node's primary address of each family ([model.Node.IP]), unless it is a loopback address. It
	// applies to both families, even if the node has no address in one.
	Primary bool
}

// The keywords of Parse.
const (
	primary   = "primary"   // Choice.Primary
	localhost = "localhost" // 127.0.0.0/8 and ::1/128
	all       = "all"       // 0.0.0.0/0 and ::/0
)

// Parse parses nodePortAddresses of kube-proxy's configuration: a list of CIDRs, parsed leniently (S5), and of the
// keywords "primary", "localhost" and "all", each at most once. An empty list is the zero Choice. If elements are
// invalid, the error is a [ParseError], and the choice has the others.
func Parse(list []string) (Choice, error) {
	var c Choice
	var invalid ParseError
	for i, text := range list {
		keyword := true
		switch text {
		case primary:
			c.Primary = true
		case localhost:
			c.CIDRs = append(c.CIDRs, model.IPv4.Loopback(), model.IPv6.Loopback())
		case all:
			c.CIDRs = append(c.CIDRs, model.IPv4.Everything(), model.IPv6.Everything())
		default:
			keyword = false
			if p, err := lenient.Prefix(text); err == nil {
				c.CIDRs = append(c.CIDRs, p)
			} else {
				invalid = append(invalid, ElementError{Index: i, Text: text})
			}
		}
		if keyword && slices.Contains(list[:i], text) {
			invalid = append(invalid, ElementError{Index: i, Text: text, Duplicate: true})
		}
	}
	if len(invalid) > 0 {
		return c, invalid
	}
	return c, nil
}

// ParseError is the error of [Parse]: the invalid elements, in order.
type ParseError []ElementError

// Error implements error. It has a line for each element.
func (e ParseError) Error() string {
	var lines []string
	for _, element := range e {
		lines = append(lines, element.text())
	}
	return strings.Join(lines, "\n")
}

// ElementError describes an invalid element of a list.
type ElementError struct {
	// Index is the element's index in the list, and Text its text.
	Index int
	Text  string
	// Duplicate: the element repeats a keyword. Otherwise it is neither a keyword nor a CIDR.
	Duplicate bool
}

func (e ElementError) text() string {
	if e.Duplicate {
		return fmt.Sprintf("nodePortAddresses[%d]: %q is in the list twice", e.Index, e.Text)
	}
	return fmt.Sprintf("nodePortAddresses[%d]: %q is not a CIDR, %q, %q or %q", e.Index, e.Text, primary, localhost,
		all)
}

// Validate returns an error that names the invalid CIDRs.
func (c Choice) Validate() error {
	var errs []error
	for i, p := range c.CIDRs {
		if !p.IsValid() {
			errs = append(errs, fmt.Errorf("nodePortAddresses[%d]: %v is not a prefix", i, p))
		}
	}
	return errors.Join(errs...)
}

// All reports whether every address of a family is selected, whatever the host's addresses.
func (c Choice) All(f model.Family) bool {
	said := c.Primary
	for _, p := range c.CIDRs {
		if model.FamilyOf(p.Addr()) == f {
			if p.Bits() == 0 {
				return true
			}
			said = true
		}
	}
	return !said
}

// Loopback reports whether the IPv4 loopback range, or a part of it, is selected. Only then can node ports be served on
// 127.0.0.1 (S36).
func (c Choice) Loopback() bool {
	return c.All(model.IPv4) || slices.ContainsFunc(c.CIDRs, model.IPv4.Loopback().Overlaps)
}

// Of returns the selected addresses of a host, whose addresses may be in any order. Only Primary needs the node, which
// may be nil.
func (c Choice) Of(host []netip.Addr, node *model.Node) Addresses {
	a := Addresses{IPs: c.primaryIPs(node)}
	for _, f := range model.Families() {
		if c.All(f) {
			a.All |= f.Set()
		}
	}
	for _, addr := range host {
		if addr = addr.Unmap().WithZone(""); c.contains(addr) {
			a.IPs = append(a.IPs, addr)
		}
	}
	slices.SortFunc(a.IPs, netip.Addr.Compare)
	a.IPs = slices.Compact(a.IPs)
	return a
}

// primaryIPs returns the addresses that Primary selects, none if it is false.
func (c Choice) primaryIPs(node *model.Node) []netip.Addr {
	if !c.Primary || node == nil {
		return nil
	}
	var ips []netip.Addr
	for _, f := range model.Families() {
		if ip := node.IP(f); ip.IsValid() && !ip.IsLoopback() {
			ips = append(ips, ip)
		}
	}
	return ips
}

func (c Choice) contains(a netip.Addr) bool {
	if c.All(model.FamilyOf(a)) && !a.IsLinkLocalUnicast() {
		return true
	}
	// A link-local address is valid only on one interface, so it has to be selected explicitly.
	return slices.ContainsFunc(c.CIDRs, func(p netip.Prefix) bool {
		return p.Contains(a) && (!a.IsLinkLocalUnicast() || p.Addr().IsLinkLocalUnicast())
	})
}

// Addresses are the host's addresses that serve node ports. The value is immutable.
type Addresses struct {
	// All has the families of which every address serves node ports. For these, a backend that can recognise the host's
	// addresses need not use IPs.
	All model.FamilySet
	// IPs are the addresses, sorted, IPv4 first, without duplicates, including the families in All. Link-local addresses
	// are included only if a range within the link-local range is selected.
	IPs []netip.Addr
}

// Of returns the addresses of a family.
func (a Addresses) Of(f model.Family) []netip.Addr {
	var list []netip.Addr
	for _, ip := range a.IPs {
		if model.FamilyOf(ip) == f {
			list = append(list, ip)
		}
	}
	return list
}

// Equal reports whether two values have the same content.
func (a Addresses) Equal(o Addresses) bool {
	return a.All == o.All && slices.Equal(a.IPs, o.IPs)
}

// String returns a readable form, for example "all IPv4 (10.0.0.1, 127.0.0.1), IPv6: fd00::1".
func (a Addresses) String() string {
	var parts []string
	for _, f := range model.Families() {
		var ips []string
		for _, ip := range a.Of(f) {
			ips = append(ips, ip.String())
		}
		text := strings.Join(ips, ", ")
		switch {
		case a.All.Has(f):
			parts = append(parts, fmt.Sprintf("all %v (%s)", f, text))
		case text == "":
			parts = append(parts, fmt.Sprintf("%v: none", f))
		default:
			parts = append(parts, fmt.Sprintf("%v: %s", f, text))
		}
	}
	return strings.Join(parts, ", ")
}
