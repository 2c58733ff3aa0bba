package ipvs

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	nft "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// layoutComment is the comment of the table. A table with another one is replaced.
const layoutComment = "beside IPVS: service proxy of kube-proxy-lib, layout 1"

// Names of sets.
const (
	servicesMap = "service-ips"
	sourcesSet  = "vip-sources"
	boundSet    = "bound-ips"
	// A process of the node that opens a connection to an address of the dummy interface has that address as its
	// source.
	boundSources = "bound-to-itself"
	hairpinSet   = "hairpin"
)

func vipKey() []nft.Field { return []nft.Field{nft.DestinationAddr, nft.Protocol, nft.DestinationPort} }

// newSets returns the sets and maps of the table, in the order in which they are made.
func newSets() []nft.Set {
	return []nft.Set{
		{Name: servicesMap, Key: vipKey(), Verdicts: true},
		{Name: sourcesSet, Key: append(vipKey(), nft.SourceAddr), Interval: true},
		{Name: boundSet, Key: []nft.Field{nft.DestinationAddr}},
		{Name: boundSources, Key: []nft.Field{nft.SourceAddr, nft.DestinationAddr}},
		{Name: hairpinSet, Key: []nft.Field{nft.SourceAddr, nft.DestinationAddr}},
	}
}

// set returns one of these.
func set(name string) *nft.Set {
	all := newSets()
	return &all[slices.IndexFunc(all, func(s nft.Set) bool { return s.Name == name })]
}

// markPrefix is what the names of chains begin with that set the mark of a virtual server.
const markPrefix = "mark-"

// Chains that are always there.
const (
	rejectChain      = "reject-traffic"
	dropChain        = "drop-traffic"
	keepChain        = "keep-source"
	masqChain        = "masquerade-traffic"
	masqNonPodChain  = "masquerade-nonpod"
	addressesChain   = "service-cidrs-check"
	preroutingChain  = "nat-prerouting"
	outputChain      = "nat-output"
	postroutingChain = "nat-postrouting"
	forwardChain     = "filter-forward"
	filterChain      = "filter-output"
)

// Priorities of the base chains. IPVS sees packets of the node itself at -98, and those that are addressed to it at 99.
const (
	beforeIPVS = -100 // dstnat
	afterIPVS  = -90
	filterPrio = 0
	srcNAT     = 100
)

func rule(comment string, statements ...nft.Statement) nft.Rule {
	return nft.Rule{Statements: statements, Comment: comment}
}

// baseChains are the chains that are always there, in the order in which they can be made.
func (c *config) baseChains() []chain {
	named := func(name string, rules ...nft.Rule) chain { return chain{nft.Chain{Name: name}, rules} }
	services := []nft.Rule{rule("", nft.GotoMap{Map: set(servicesMap)})}
	for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		services = append(services, rule("ports of the node, by an address of a service", nft.IsProtocol{Protocol: p},
			nft.InSet{Set: set(boundSet)}, nft.Reject{}))
	}
	var addresses []nft.Rule
	for _, cidr := range c.serviceCIDRs {
		addresses = append(addresses, rule("service addresses that are not in use",
			nft.InPrefix{Field: nft.DestinationAddr, Prefix: cidr}, nft.Drop{}))
	}
	check := []nft.Rule{rule("", nft.IsNew{}, nft.Jump{Chain: addressesChain})}
	base := func(name string, hook nft.Hook, priority int32, isFilter bool, rules []nft.Rule) chain {
		return chain{nft.Chain{Name: name, Hook: hook, Priority: priority, Filter: isFilter}, rules}
	}
	return []chain{
		named(rejectChain, rule("", nft.Reject{})),
		named(dropChain, rule("", nft.Drop{})),
		named(keepChain, rule("the node itself, by an address of the dummy interface",
			nft.InSet{Set: set(boundSources)},
			nft.SetMark{Bit: c.mark})),
		named(masqChain, rule("", nft.SetMark{Bit: c.mark})),
		named(masqNonPodChain, append(c.fromPods(nft.Goto{Chain: keepChain}), rule("", nft.SetMark{Bit: c.mark}))...),
		named(addressesChain, addresses...),
		base(preroutingChain, nft.Prerouting, beforeIPVS, false, services),
		base(outputChain, nft.Output, beforeIPVS, false, services),
		base(postroutingChain, nft.Postrouting, srcNAT, false, []nft.Rule{
			rule("", nft.HasMark{Bit: c.mark}, nft.FlipMark{Bit: c.mark}, nft.Masquerade{}),
			rule("an endpoint that reaches itself",
				nft.InSet{Set: set(hairpinSet)}, nft.Masquerade{})}),
		base(forwardChain, nft.Forward, filterPrio, true, check),
		base(filterChain, nft.Output, afterIPVS, true, check),
	}
}

// fromPods returns rules that apply a verdict to packets from pods of this node (S30).
func (c *config) fromPods(verdict nft.Statement) []nft.Rule {
	l := c.localPods
	switch {
	case l.Bridge != "":
		return []nft.Rule{rule("", nft.FromInterface{Name: l.Bridge}, verdict)}
	case l.InterfacePrefix != "":
		return []nft.Rule{rule("", nft.FromInterface{Name: l.InterfacePrefix, Prefix: true}, verdict)}
	}
	var rules []nft.Rule
	for _, cidr := range l.CIDRs {
		rules = append(rules, rule("", nft.InPrefix{Field: nft.SourceAddr, Prefix: cidr}, verdict))
	}
	return rules
}

// routeChain returns the chain for one kind of source: a route, the size of its set, and the mark of the virtual server
// that serves it, 0 for that of the address. It makes the chain if need be.
func (f *family) routeChain(r model.Route, size int, mark uint32) string {
	switch {
	case size == 0 && r.Empty == model.Drop:
		return dropChain
	case size == 0:
		return rejectChain
	case mark != 0:
		name := fmt.Sprintf("%s%08x", markPrefix, mark)
		if !f.filter.has(name) {
			f.filter.addChain(chain{nft.Chain{Name: name}, []nft.Rule{rule("", nft.SetMark{Bit: mark})}})
		}
		return name
	case r.Masquerade == model.MasqueradeAlways:
		return masqChain
	case r.Masquerade == model.MasqueradeUnlessLocalPod:
		return masqNonPodChain
	}
	return keepChain
}

// dispatchChain returns the chain for new connections to a port's frontends of a kind, and makes it if need be. A few
// chains serve all ports; chains with marks belong to one port, which remembers them.
func (f *family) dispatchChain(p *frontend.Port, own *port, kind frontend.Kind, restricted bool) string {
	keep := func(name string) {
		if strings.Contains(name, markPrefix) {
			own.chains[name] = true
		}
	}
	marks, r := own.marks, p.RoutesOf(kind)
	other := f.routeChain(r.Other, p.Size(r.Other.Endpoints), 0)
	name := other
	if !r.Same() {
		pod := f.routeChain(r.FromPod, p.Size(r.FromPod.Endpoints), marks.pod)
		node := f.routeChain(r.FromNode, p.Size(r.FromNode.Endpoints), marks.node)
		name = fmt.Sprintf("pod-%s-node-%s-other-%s", pod, node, other)
		for _, chain := range []string{pod, node, name} {
			keep(chain)
		}
		if !f.filter.has(name) {
			rules := append(f.config.fromPods(nft.Goto{Chain: pod}),
				rule("", nft.IsLocal{Field: nft.SourceAddr}, nft.Goto{Chain: node}),
				rule("", nft.Goto{Chain: other}))
			f.filter.addChain(chain{nft.Chain{Name: name}, rules})
		}
	}
	if !restricted {
		return name
	}
	open := name
	name = "restricted-" + open
	keep(name)
	if !f.filter.has(name) {
		f.filter.addChain(chain{nft.Chain{Name: name}, []nft.Rule{
			rule("", nft.InSet{Set: set(sourcesSet), Not: true}, nft.Drop{}),
			rule("", nft.Goto{Chain: open})}})
	}
	return name
}

// dispatchKey is the key of an address and port in the map of services.
func dispatchKey(a netip.Addr, port uint16, p model.Protocol) string {
	return string(nft.AppendPort(nft.AppendProtocol(nft.AppendAddr(nil, a), p), port))
}

// addrKey is a key of one address.
func addrKey(a netip.Addr) string { return string(nft.AppendAddr(nil, a)) }

// sourceKeys are the keys of source ranges of a VIP. Ranges within others are left out: they must not overlap.
func sourceKeys(vip string, ranges []netip.Prefix) []string {
	var last netip.Prefix
	keys := make([]string, 0, len(ranges))
	for _, r := range slices.SortedFunc(slices.Values(ranges), model.ComparePrefixes) {
		if last.Contains(r.Addr()) {
			continue
		}
		last = r
		keys = append(keys, vip+addrKey(r.Masked().Addr())+vip+addrKey(lastAddr(r)))
	}
	return keys
}

// lastAddr returns the last address of a prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
