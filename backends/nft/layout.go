package nft

import (
	"math/bits"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// layoutComment is the comment of the table. A table with another comment is replaced.
const layoutComment = "service proxy of kube-proxy-lib, layout 4"

// The chains that every table has besides those of package rules. Others are named in action.go, own.go and groups.go.
const (
	masqueradeChain = "masquerade-traffic"
	clusterIPsChain = "cluster-ips-check"
	filterChain     = "filter-output-post-dnat"
)

// setID is one of the sets and maps that every table has, in the order in which they are made and listed.
type setID int

const (
	serviceIPs setID = iota // where to go
	nodePorts
	endpoints // slots of the cluster set, then those of the local set
	localEndpoints
	nodePortEndpoints
	nodePortLocalEndpoints
	portEndpoints // those of service ports with their own chains, by numbers
	clusterIPs
	nodePortIPs
	hairpin
	numSets
)

// hasSlots reports whether it is one of the maps with slots. They have a size.
func (id setID) hasSlots() bool { return id >= endpoints && id <= portEndpoints }

// isLookedUpFirst reports whether packets look it up first. Packets in flight that have done so may still look up
// others.
func (id setID) isLookedUpFirst() bool { return !id.hasSlots() && id != hairpin }

// slotsOf returns the map with the endpoints of a set, for service addresses or for node ports.
func slotsOf(set model.EndpointSets, nodePort bool) setID {
	switch local := set == model.LocalSet; {
	case nodePort && local:
		return nodePortLocalEndpoints
	case nodePort:
		return nodePortEndpoints
	case local:
		return localEndpoints
	}
	return endpoints
}

type sets [numSets]*dp.Set

// minSlots is the size of the slot maps of a small cluster. A map with a size is several times faster to fill and to
// list than one without, and it cannot grow: a bigger one takes its place, under another name.
const minSlots = 16 << 10

func newSets() *sets {
	vip := rules.VIPFields()
	nodePort := []dp.Field{dp.Protocol, dp.DestinationPort}
	slots := func(name string, key ...dp.Field) *dp.Set {
		return &dp.Set{Name: name, Key: append(key[:len(key):len(key)], dp.Random), Size: minSlots,
			Value: []dp.Field{dp.DestinationAddr, dp.DestinationPort}}
	}
	return &sets{
		serviceIPs:             rules.ServiceIPs(),
		nodePorts:              {Name: "nodeports", Key: nodePort, Verdicts: true},
		endpoints:              slots("endpoints", vip...),
		localEndpoints:         slots("local-endpoints", vip...),
		nodePortEndpoints:      slots("nodeport-endpoints", nodePort...),
		nodePortLocalEndpoints: slots("nodeport-local-endpoints", nodePort...),
		portEndpoints:          slots("port-endpoints", dp.Constant),
		clusterIPs:             {Name: "cluster-ips", Key: []dp.Field{dp.DestinationAddr}},
		nodePortIPs:            {Name: "nodeport-ips", Key: []dp.Field{dp.DestinationAddr}},
		hairpin:                rules.Hairpin(),
	}
}

// sizeFor returns a size in which n can double.
func sizeFor(n int) uint32 {
	return max(minSlots, uint32(1)<<bits.Len(uint(max(2*n-1, 0))))
}

// config is the part of the node and of the options that the rules of a family depend on.
type config struct {
	node      *model.Node
	family    model.Family
	mark      uint32
	localPods model.LocalPods
	// serviceCIDRs are those of the family.
	serviceCIDRs []netip.Prefix
	// Node ports are served on all local addresses in nodePortPrefixes, the zero Prefix being all of them, and, if
	// nodePortPrimary is set, on nodePortIPs.
	nodePortPrefixes []netip.Prefix
	nodePortPrimary  bool
	nodePortIPs      []netip.Addr
}

func newConfig(f model.Family, o *Options, node *model.Node) *config {
	c := &config{family: f, mark: o.MasqueradeMark, node: node,
		localPods: node.LocalPods.Of(f), serviceCIDRs: model.PrefixesOf(f, node.ServiceCIDRs)}
	choice := o.NodePortAddresses
	if choice.All(f) {
		c.nodePortPrefixes = []netip.Prefix{{}}
		return c
	}
	c.nodePortPrefixes = slices.DeleteFunc(model.PrefixesOf(f, choice.CIDRs), func(p netip.Prefix) bool {
		return p.Addr().IsLoopback() // all of it
	})
	c.nodePortPrimary, c.nodePortIPs = choice.Primary, choice.Of(nil, node).Of(f)
	return c
}

// changeBase plans the consequences of changes of the node, of the cluster IPs and of the addresses of hairpin traffic.
func (p *plan) changeBase(cfg *config, hairpins, ips frontend.Diff[netip.Addr]) {
	p.changeAddrs(hairpin, hairpins, rules.HairpinKey)
	p.changeAddrs(clusterIPs, ips, rules.AddrKey)
	t, before, strays := p.base, p.base.config, p.base.strays
	t.config = cfg
	t.strays += cfg.strays(ips.Added) - cfg.strays(ips.Removed)
	if cfg == before && (t.strays > 0) == (strays > 0) {
		return
	}
	p.changeAddrs(nodePortIPs, frontend.Diff[netip.Addr]{Added: cfg.nodePortIPs, Removed: before.nodePortIPs},
		rules.AddrKey)
	for _, ch := range cfg.baseChains(t.sets, t.strays > 0) {
		p.ensure(ch, nil)
	}
}

// changeAddrs plans which addresses are in a set, by their keys.
func (p *plan) changeAddrs(id setID, c frontend.Diff[netip.Addr], key func(netip.Addr) string) {
	sp := &p.sets[id]
	sp.add = slices.Grow(sp.add, len(c.Added))
	for _, a := range c.Removed {
		sp.gone = append(sp.gone, dp.Element{Key: key(a)})
	}
	for _, a := range c.Added {
		sp.add = append(sp.add, dp.Element{Key: key(a)})
	}
}

// strays counts the addresses that are in no service CIDR.
func (c *config) strays(ips []netip.Addr) (n int) {
	for _, ip := range ips {
		if !slices.ContainsFunc(c.serviceCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			n++
		}
	}
	return n
}

// baseChains returns the chains that every table has, in the order in which they can be made. strays says whether some
// cluster IPs are outside the service CIDRs.
//
// Packets to service addresses that lack the port, or belong to no service, are refused on forward and output, after
// all address translation (S33): another program may serve some of these, and packets to an address of the node itself
// are not forwarded at all.
//
// Connections that are not for a service pay for every rule that they pass here, and nearly as much for a jump to a
// chain as for a lookup among thousands of elements. So two rules are in the chains of both hooks, service addresses
// are looked up only within the service CIDRs, and the address of a node port is checked after the port, in the chains
// that onNodeChain makes.
func (c *config) baseChains(s *sets, strays bool) []rules.Chain {
	return slices.Concat(rules.Verdicts(),
		[]rules.Chain{c.clusterIPsChain(s), rules.NewChain(masqueradeChain, rules.Masquerade(c.mark, s[hairpin])...)},
		rules.BaseChains(
			[]dp.Rule{rules.Rule(dp.GotoMap{Map: s[serviceIPs]}), rules.Rule(dp.GotoMap{Map: s[nodePorts]})},
			[]dp.Rule{rules.Rule(dp.IsDNATed{}, dp.Goto{Chain: masqueradeChain})},
			c.toClusterIPsChain(strays), filterChain))
}

// clusterIPsChain refuses new connections to service addresses that no program has translated (S33).
func (c *config) clusterIPsChain(s *sets) rules.Chain {
	refuse := rules.Commented("ports that the service does not have", dp.InSet{Set: s[clusterIPs]}, dp.Reject{})
	return rules.NewChain(clusterIPsChain, append([]dp.Rule{refuse}, rules.DropUnused(c.serviceCIDRs)...)...)
}

// toClusterIPsChain returns rules that send new connections there that may be to a service address.
func (c *config) toClusterIPsChain(strays bool) (list []dp.Rule) {
	check := dp.Goto{Chain: clusterIPsChain}
	if strays || len(c.serviceCIDRs) == 0 {
		return []dp.Rule{rules.Rule(dp.IsNew{}, check)}
	}
	for _, cidr := range c.serviceCIDRs {
		list = append(list, rules.Rule(dp.IsNew{}, dp.InPrefix{Field: dp.DestinationAddr, Prefix: cidr}, check))
	}
	return list
}

// onNodeChain goes to another chain if the destination is one of the addresses that serve node ports (S35).
func (c *config) onNodeChain(s *sets, name, to string) rules.Chain {
	ch := rules.NewChain(name)
	then := dp.Goto{Chain: to}
	if c.nodePortPrimary {
		ch.Rules = append(ch.Rules, rules.Rule(dp.InSet{Set: s[nodePortIPs]}, then))
	}
	for _, p := range c.nodePortPrefixes {
		match := []dp.Statement{dp.InPrefix{Field: dp.DestinationAddr, Prefix: c.family.Loopback(), Not: true}}
		if p.Bits() > 0 {
			match = append(match, dp.InPrefix{Field: dp.DestinationAddr, Prefix: p})
		}
		ch.Rules = append(ch.Rules, rules.Rule(append(match, dp.IsLocal{Field: dp.DestinationAddr}, then)...))
	}
	return ch
}
