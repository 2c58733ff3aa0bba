package ipvs

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// layoutComment is the comment of the table. A table with another one is replaced.
const layoutComment = "beside IPVS: service proxy of kube-proxy-lib, layout 4"

// config has the parts of the node and the options that virtual servers and rules depend on, in one family.
type config struct {
	family       model.Family
	mark         uint32 // of packets to masquerade
	marks        uint32 // bits of marks that select virtual servers
	localPods    model.LocalPods
	serviceCIDRs []netip.Prefix
	// nodePortIPs serve node ports.
	nodePortIPs []netip.Addr
	hostIPs     []netip.Addr // sorted
	// apiServers are sorted.
	apiServers []netip.AddrPort
}

func newConfig(f model.Family, o *Options, node *model.Node, nodePortIPs, hostIPs []netip.Addr) *config {
	return &config{family: f, mark: o.MasqueradeMark, marks: o.Marks &^ o.deliveryBit(),
		localPods: node.LocalPods.Of(f), serviceCIDRs: model.PrefixesOf(f, node.ServiceCIDRs),
		nodePortIPs: slices.DeleteFunc(nodePortIPs, netip.Addr.IsLoopback), hostIPs: hostIPs}
}

// equal reports whether two configurations give the same result.
func (c *config) equal(o *config) bool {
	return o != nil && c.family == o.family && c.mark == o.mark && c.marks == o.marks && c.localPods.Equal(o.localPods) &&
		slices.Equal(c.serviceCIDRs, o.serviceCIDRs) && slices.Equal(c.nodePortIPs, o.nodePortIPs) &&
		slices.Equal(c.hostIPs, o.hostIPs) && slices.Equal(c.apiServers, o.apiServers)
}

// setID is one of the sets and maps of the table, in the order in which they are made.
type setID int

const (
	serviceIPs setID = iota // which chain to go to
	boundIPs
	// A process of the node that opens a connection to an address of the dummy interface has that address as its
	// source.
	boundToItself
	// Load balancers probe a service's VIP at its health-check port, where the node itself answers (S38).
	healthChecks
	// Ports of services at addresses of other machines (S63).
	otherIPs
	hairpins
	numSets
)

type sets [numSets]*nft.Set

func newSets() *sets {
	return &sets{
		serviceIPs:    rules.ServiceIPs(),
		boundIPs:      {Name: "bound-ips", Key: []nft.Field{nft.DestinationAddr}},
		boundToItself: {Name: "bound-to-itself", Key: []nft.Field{nft.SourceAddr, nft.DestinationAddr}},
		healthChecks:  {Name: "health-checks", Key: []nft.Field{nft.Protocol, nft.DestinationPort}},
		otherIPs:      {Name: "other-ips", Key: rules.VIPFields()},
		hairpins:      rules.Hairpin(),
	}
}

// markPrefix is what the names of chains begin with that set the mark of a virtual server.
const markPrefix = "mark-"

// bind is the last rule of the chains that packets to a service pass. To other programs the addresses of services are
// the node's own. A program that translates packets to the node's addresses, for example to a pod with a host port,
// would take those to services as well (S62). So the chains of this table, which come first (S67), bind what is for a
// service to its destination: later chains do not see it.
func bind() nft.Rule { return rules.Rule(nft.KeepDestination{}) }

// Chains that are always there, besides those of package rules.
const (
	keepChain       = "keep-source"
	masqChain       = "masquerade-traffic"
	masqNonPodChain = "masquerade-nonpod"
	addressesChain  = "service-cidrs-check"
	unservedChain   = "unserved-ports"
	filterChain     = "filter-output"
)

// baseChains are the chains that are always there, in the order in which they can be made.
func (c *config) baseChains(s *sets) []rules.Chain {
	services := []nft.Rule{rules.Rule(nft.GotoMap{Map: s[serviceIPs]}),
		rules.Commented("ports of the node, by an address of a service", nft.InSet{Set: s[boundIPs]},
			nft.Goto{Chain: unservedChain})}
	var toVIP []nft.Statement
	for _, cidr := range c.serviceCIDRs {
		toVIP = append(toVIP, nft.InPrefix{Field: nft.DestinationAddr, Prefix: cidr, Not: true})
	}
	unserved := []nft.Rule{rules.Commented("health checks of load balancers",
		append(toVIP, nft.InSet{Set: s[healthChecks]}, nft.KeepDestination{})...)}
	for _, p := range []model.Protocol{model.TCP, model.UDP, model.SCTP} {
		unserved = append(unserved, rules.Rule(nft.IsProtocol{Protocol: p}, nft.Reject{}))
	}
	base := rules.BaseChains(services, rules.Masquerade(c.mark, s[hairpins]),
		[]nft.Rule{rules.Rule(nft.IsNew{}, nft.Jump{Chain: addressesChain})}, filterChain)
	return slices.Concat(rules.Verdicts(),
		[]rules.Chain{
			rules.NewChain(keepChain, rules.Commented("the node itself, by an address of the dummy interface",
				nft.InSet{Set: s[boundToItself]}, nft.SetMark{Bit: c.mark}), bind()),
			markChain(masqChain, c.mark),
			rules.NewChain(masqNonPodChain, append(rules.FromPods(c.localPods, keepChain),
				rules.Rule(nft.SetMark{Bit: c.mark}), bind())...),
			rules.NewChain(unservedChain, unserved...),
			rules.NewChain(addressesChain, rules.DropUnused(c.serviceCIDRs)...),
		},
		base)
}

// markChain returns a chain that sets a mark.
func markChain(name string, mark uint32) rules.Chain {
	return rules.NewChain(name, rules.Rule(nft.SetMark{Bit: mark}), bind())
}

// newPort returns a service port as it is wanted, without virtual servers, and makes the filter hold the chains that it
// needs. old is what it was before, if anything.
//
// A port has a mark for each kind of source whose backend set is not that of all others (S27). Marks of masqueraded
// sources have the masquerade bit, too, because IPVS compares the whole mark. If no mark is left, these sources are
// served like all others. A port keeps the mark that it had before.
func (p *ports) newPort(c *frontend.Port, old *port) *port {
	cluster, extern := c.RoutesOf(frontend.ClusterIP), c.RoutesOf(frontend.ExternalIP)
	isEmpty := func(r model.Route) bool { return c.Size(r.Endpoints) == 0 }
	own := &port{name: c.Name, affinity: c.AffinityTimeout, servers: map[*server]bool{}}
	differs := func(r model.Route) bool { return !r.IsZero() && r.Endpoints != extern.Other.Endpoints }
	if !extern.Other.IsZero() && (differs(extern.FromPod) || differs(extern.FromNode)) {
		own.mark, own.err = p.markFor(c.Name, old)
		own.marks = map[uint32]model.EndpointSets{}
	}
	markOf := func(r model.Route) (mark uint32) {
		if mark = own.mark; mark == 0 || !differs(r) {
			return 0
		}
		if r.Masquerade != model.MasqueradeNever {
			mark |= p.config.mark
		}
		own.marks[mark] = r.Endpoints
		return mark
	}
	var chains []rules.Chain
	add := func(c rules.Chain) string {
		chains = append(chains, c)
		return c.Name
	}
	chainOf := func(r model.Route, mark uint32) string {
		switch {
		case isEmpty(r) && r.Empty == model.Drop:
			return rules.DropChain
		case isEmpty(r):
			return rules.RejectChain
		case mark != 0:
			return add(markChain(fmt.Sprintf("%s%08x", markPrefix, mark), mark))
		case r.Masquerade == model.MasqueradeAlways:
			return masqChain
		case r.Masquerade == model.MasqueradeUnlessLocalPod:
			return masqNonPodChain
		}
		return keepChain
	}
	own.clusterIP = path{chain: chainOf(cluster.Other, 0), set: cluster.Other.Endpoints}
	own.extern = path{chain: chainOf(extern.Other, 0), set: extern.Other.Endpoints}
	if !extern.Same() {
		pod, node := chainOf(extern.FromPod, markOf(extern.FromPod)), chainOf(extern.FromNode, markOf(extern.FromNode))
		name := fmt.Sprintf("pod-%s-node-%s-other-%s", pod, node, own.extern.chain)
		own.extern.chain = add(rules.BySource(name, p.config.localPods, pod, node, own.extern.chain))
	}
	var sources *rules.Sources // that may use the port's VIPs (S26)
	if c.Count(frontend.LoadBalancerIP) > 0 && c.Restricts(frontend.LoadBalancerIP) {
		sources = p.lists.Of(c.SourceRanges)
		own.extern.restricted = add(sources.ID.RestrictedChain(own.extern.chain))
	}
	own.chains = p.filter.hold(sources, chains)
	return own
}
