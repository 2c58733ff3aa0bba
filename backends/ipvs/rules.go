package ipvs

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	nft "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// layoutComment is the comment of the table. A table with another one is replaced.
const layoutComment = "beside IPVS: service proxy of kube-proxy-lib, layout 1"

// setID is one of the sets and maps of the table, in the order in which they are made.
type setID int

const (
	serviceIPs setID = iota // which chain to go to
	vipSources
	boundIPs
	// A process of the node that opens a connection to an address of the dummy interface has that address as its
	// source.
	boundToItself
	hairpins
	numSets
)

type sets [numSets]*nft.Set

func newSets() *sets {
	return &sets{
		serviceIPs:    rules.ServiceIPs(),
		vipSources:    rules.VIPSources(),
		boundIPs:      {Name: "bound-ips", Key: []nft.Field{nft.DestinationAddr}},
		boundToItself: {Name: "bound-to-itself", Key: []nft.Field{nft.SourceAddr, nft.DestinationAddr}},
		hairpins:      rules.Hairpin(),
	}
}

// markPrefix is what the names of chains begin with that set the mark of a virtual server.
const markPrefix = "mark-"

// Chains that are always there, beside those of package rules.
const (
	keepChain       = "keep-source"
	masqChain       = "masquerade-traffic"
	masqNonPodChain = "masquerade-nonpod"
	addressesChain  = "service-cidrs-check"
	filterChain     = "filter-output"
)

// baseChains are the chains that are always there, in the order in which they can be made.
func (c *config) baseChains(s *sets) []rules.Chain {
	services := []nft.Rule{rules.Rule(nft.GotoMap{Map: s[serviceIPs]})}
	for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		services = append(services, rules.Commented("ports of the node, by an address of a service",
			nft.IsProtocol{Protocol: p}, nft.InSet{Set: s[boundIPs]}, nft.Reject{}))
	}
	setMark := rules.Rule(nft.SetMark{Bit: c.mark})
	return slices.Concat(rules.Verdicts(),
		[]rules.Chain{
			rules.NewChain(keepChain, rules.Commented("the node itself, by an address of the dummy interface",
				nft.InSet{Set: s[boundToItself]}, nft.SetMark{Bit: c.mark})),
			rules.NewChain(masqChain, setMark),
			rules.NewChain(masqNonPodChain, append(rules.FromPods(c.localPods, keepChain), setMark)...),
			rules.NewChain(addressesChain, rules.DropUnused(c.serviceCIDRs)...),
		},
		rules.BaseChains(services, rules.Masquerade(c.mark, s[hairpins]),
			[]nft.Rule{rules.Rule(nft.IsNew{}, nft.Jump{Chain: addressesChain})}, filterChain))
}

// routeChain returns the chain for one kind of source: a route, the size of its set, and the mark of the virtual server
// that serves it, 0 for that of the address. It makes the chain if need be.
func (f *family) routeChain(r model.Route, size int, mark uint32) string {
	switch {
	case size == 0 && r.Empty == model.Drop:
		return rules.DropChain
	case size == 0:
		return rules.RejectChain
	case mark != 0:
		name := fmt.Sprintf("%s%08x", markPrefix, mark)
		if !f.filter.has(name) {
			f.filter.addChain(rules.NewChain(name, rules.Rule(nft.SetMark{Bit: mark})))
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
			f.filter.addChain(rules.BySource(name, f.config.localPods, pod, node, other))
		}
	}
	if !restricted {
		return name
	}
	open := name
	name = rules.Restricted(open)
	keep(name)
	if !f.filter.has(name) {
		f.filter.addChain(rules.RestrictedChain(f.filter.sets[vipSources], open))
	}
	return name
}
