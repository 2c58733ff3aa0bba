package nodeaddr

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Choice says which of a host's addresses serve node ports (S35). The zero value chooses all of them.
type Choice struct {
	// CIDRs are the ranges of chosen addresses. In a family without any, all addresses are chosen.
	CIDRs []netip.Prefix
	// Primary chooses the node's primary address of each family ([model.Node.IP]) unless it is a loopback address,
	// and nothing else. CIDRs are ignored then. In a family in which the node has no address, none is chosen.
	Primary bool
}

// primary is how Parse spells Choice.Primary.
const primary = "primary"

// Parse reads the form that kube-proxy's configuration has: a list of CIDRs, or "primary" alone. An empty list means
// all addresses. The error names every invalid element; the choice then has the others.
func Parse(list []string) (Choice, error) {
	if len(list) == 1 && list[0] == primary {
		return Choice{Primary: true}, nil
	}
	var c Choice
	var errs []error
	for i, text := range list {
		if text == primary {
			errs = append(errs, fmt.Errorf("nodePortAddresses[%d]: %q cannot be combined with anything else", i, text))
			continue
		}
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("nodePortAddresses[%d]: %q is not an address range", i, text))
			continue
		}
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		c.CIDRs = append(c.CIDRs, p.Masked())
	}
	return c, errors.Join(errs...)
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

// All reports whether every address of a family is chosen, whatever addresses the host has.
func (c Choice) All(f model.Family) bool {
	if c.Primary {
		return false
	}
	any := false
	for _, p := range c.CIDRs {
		if model.FamilyOf(p.Addr()) == f {
			if p.Bits() == 0 {
				return true
			}
			any = true
		}
	}
	return !any
}

// Loopback reports whether the IPv4 loopback range, or a part of it, is chosen: only then can node ports be served on
// 127.0.0.1 (S36).
func (c Choice) Loopback() bool {
	loopback := netip.MustParsePrefix("127.0.0.0/8")
	return c.All(model.IPv4) || !c.Primary && slices.ContainsFunc(c.CIDRs, loopback.Overlaps)
}

// Of computes the result of the choice for a host with the given addresses, in any order, and a node, which only
// Primary needs and which may be nil.
func (c Choice) Of(host []netip.Addr, node *model.Node) Addresses {
	a := Addresses{AllIPv4: c.All(model.IPv4), AllIPv6: c.All(model.IPv6)}
	if c.Primary {
		for _, f := range model.Families() {
			if node == nil {
				break
			}
			if ip := node.IP(f); ip.IsValid() && !ip.IsLoopback() {
				a.IPs = append(a.IPs, ip)
			}
		}
		return a
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

func (c Choice) contains(a netip.Addr) bool {
	all := c.All(model.FamilyOf(a))
	if all && !a.IsLinkLocalUnicast() {
		return true
	}
	// A link-local address is valid on one interface only: it has to be chosen explicitly.
	return slices.ContainsFunc(c.CIDRs, func(p netip.Prefix) bool {
		return p.Contains(a) && (!a.IsLinkLocalUnicast() || p.Addr().IsLinkLocalUnicast())
	})
}

// Addresses are the addresses of a host that serve node ports. The value is immutable.
type Addresses struct {
	// AllIPv4 and AllIPv6: every address of the family. A backend that can recognise addresses of the host need not
	// look at IPs then.
	AllIPv4, AllIPv6 bool
	// IPs are the addresses, sorted, IPv4 first, without duplicates; also those of a family of which all are chosen.
	// Link-local addresses are included only if a range within the link-local range is chosen.
	IPs []netip.Addr
}

// All reports whether every address of a family serves node ports.
func (a Addresses) All(f model.Family) bool {
	switch f {
	case model.IPv4:
		return a.AllIPv4
	case model.IPv6:
		return a.AllIPv6
	}
	return false
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
	return a.AllIPv4 == o.AllIPv4 && a.AllIPv6 == o.AllIPv6 && slices.Equal(a.IPs, o.IPs)
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
		case a.All(f):
			parts = append(parts, fmt.Sprintf("all %v (%s)", f, text))
		case text == "":
			parts = append(parts, fmt.Sprintf("%v: none", f))
		default:
			parts = append(parts, fmt.Sprintf("%v: %s", f, text))
		}
	}
	return strings.Join(parts, ", ")
}
