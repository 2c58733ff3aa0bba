package nft

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	dp "sigs.k8s.io/kube-proxy-lib/backends/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A service port with session affinity (S32) has a set for each endpoint, with the clients that stay with it, and a chain
// for each set of endpoints that routes use. The chain first looks the client up in the sets, and only then takes an
// endpoint at random; either way it puts the client into the endpoint's set. Where the traffic came in makes no
// difference, and when an endpoint goes, its clients go with it in the same transaction and all others stay.

// maxClients is how many clients an endpoint's set holds at most. More are served, without affinity: a rule that cannot
// put a client into a set goes no further, and the next one gets the packet.
const maxClients = 1 << 17

// affinitySet returns the set of the clients of an endpoint.
func (p *port) affinitySet(ep netip.AddrPort) *dp.Set {
	addr := strings.ReplaceAll(ep.Addr().String(), ":", ".") // nft cannot read colons in names
	return &dp.Set{Name: p.affinity + "-" + addr + "/" + strconv.Itoa(int(ep.Port())), Key: []dp.Field{dp.SourceAddr},
		Dynamic: true, Size: maxClients}
}

// affinitySets returns the sets of all endpoints that routes use.
func (p *port) affinitySets() []*dp.Set {
	if p == nil || p.affinity == "" {
		return nil
	}
	endpoints := slices.Concat(p.cluster, p.local)
	slices.SortFunc(endpoints, model.CompareTargets)
	endpoints = slices.Compact(endpoints)
	sets := make([]*dp.Set, len(endpoints))
	for i, ep := range endpoints {
		sets[i] = p.affinitySet(ep)
	}
	return sets
}

// affinityChains returns the chains that are the port's own, in the order in which they can be made.
func (p *port) affinityChains(c *config, s *sets) []chain {
	if p == nil || p.affinity == "" {
		return nil
	}
	var chains []chain
	for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
		if endpoints := p.slots(set); len(endpoints) > 0 {
			chains = append(chains, p.affinityChain(set, endpoints))
		}
	}
	for i := range p.fronts {
		if p.fronts[i].lost {
			continue
		}
		for _, ch := range c.chains(s, p.dispatchOf(&p.fronts[i])) {
			own := strings.Contains(ch.Name, p.affinity)
			if own && !slices.ContainsFunc(chains, func(o chain) bool { return o.Name == ch.Name }) {
				chains = append(chains, ch)
			}
		}
	}
	return chains
}

func (p *port) affinityChain(set model.EndpointSets, endpoints []netip.AddrPort) chain {
	d := destination{set: set, n: 1, affinity: p.affinity}
	ch := chain{Chain: dp.Chain{Name: d.chainName(), Comment: dp.Escape(p.name.String(), 120)}}
	send := func(ep netip.AddrPort, match ...dp.Statement) {
		ch.rules = append(ch.rules, dp.Rule{Statements: append(match,
			dp.Refresh{Set: p.affinitySet(ep).Name, Timeout: p.timeout}, dp.IsProtocol{Protocol: p.name.Protocol}, dp.DNAT{To: ep})})
	}
	for _, ep := range endpoints {
		clients := p.affinitySet(ep)
		send(ep, dp.InSet{Key: clients.Key, Set: clients.Name})
	}
	for i, ep := range endpoints {
		if left := len(endpoints) - i; left > 1 {
			send(ep, dp.OneIn{N: uint32(left)})
		} else {
			send(ep)
			ch.rules = append(ch.rules, dp.Rule{Statements: []dp.Statement{dp.IsProtocol{Protocol: p.name.Protocol}, dp.DNAT{To: ep}},
				Comment: "if the sets are full"})
		}
	}
	return ch
}
