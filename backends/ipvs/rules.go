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
const layoutComment = "beside IPVS: service proxy of kube-proxy-lib, layout 2"

// setID is one of the sets and maps of the table, in the order in which they are made.
type setID int

const (
	serviceIPs setID = iota // which chain to go to
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

// dispatchChain returns the chain for new connections to a port's frontends of a kind, and makes it if need be.
func (p *ports) dispatchChain(c *frontend.Port, own *port, kind frontend.Kind, restricted bool) string {
	r := c.RoutesOf(kind)
	name := p.routeChain(c, own, r.Other, 0)
	if !r.Same() {
		pod, node := p.routeChain(c, own, r.FromPod, own.marks.pod), p.routeChain(c, own, r.FromNode, own.marks.node)
		bySource := fmt.Sprintf("pod-%s-node-%s-other-%s", pod, node, name)
		name = p.ensure(own, rules.BySource(bySource, p.config.localPods, pod, node, name))
	}
	if restricted {
		name = p.restrict(c, own, name)
	}
	return name
}

// restrict returns the chain that goes to another only with packets from the sources that may use a port's VIPs (S26).
func (p *ports) restrict(c *frontend.Port, own *port, to string) string {
	if own.sources == "" {
		own.sources = p.lists.Of(c.SourceRanges).ID
	}
	id := own.sources
	if !p.filter.has(id.Chain()) {
		p.filter.addSources(p.lists.Of(c.SourceRanges).Chain())
	}
	p.use(own, id.Chain())
	p.use(own, id.Restricted(to))
	return p.ensure(own, id.RestrictedChain(to))
}

// use counts a port as a user of a chain.
func (p *ports) use(own *port, chain string) {
	if !own.chains[chain] {
		own.chains[chain] = true
		p.uses[chain]++
	}
}

// routeChain returns the chain for one kind of source: a route, and the mark of the virtual server that serves it, 0
// for that of the address.
func (p *ports) routeChain(c *frontend.Port, own *port, r model.Route, mark uint32) string {
	empty := c.Size(r.Endpoints) == 0
	switch {
	case empty && r.Empty == model.Drop:
		return rules.DropChain
	case empty:
		return rules.RejectChain
	case mark != 0:
		return p.ensure(own, rules.NewChain(fmt.Sprintf("%s%08x", markPrefix, mark), rules.Rule(nft.SetMark{Bit: mark})))
	case r.Masquerade == model.MasqueradeAlways:
		return masqChain
	case r.Masquerade == model.MasqueradeUnlessLocalPod:
		return masqNonPodChain
	}
	return keepChain
}

// ensure makes a chain if need be, and returns its name. A few chains serve all ports for good; the uses of others,
// those with marks, are counted.
func (p *ports) ensure(own *port, c rules.Chain) string {
	if strings.Contains(c.Name, markPrefix) {
		p.use(own, c.Name)
	}
	if !p.filter.has(c.Name) {
		p.filter.addChain(c)
	}
	return c.Name
}
