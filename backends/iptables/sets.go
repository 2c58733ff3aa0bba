package iptables

import (
	"net/netip"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// maxInline is how many endpoints a frontend may have in a chain that it shares with others. One with more gets its own
// chain, so that packets for others do not have to walk past its rules.
const maxInline = 16

// partSize is the maximum number of endpoints in a chain. A bigger set is split into several chains, one of which is
// drawn by another:
//
//	KPL-CLUSTER-...    a chance of 128 in 300 -> KPL-C0-..., of 128 in 172 -> KPL-C1-..., else -> KPL-C2-...
//
// So a changed endpoint rewrites a chain of 128 rules, and not of 50,000, and packets walk few rules. Sets with session
// affinity are in one chain: a client may have been sent to any endpoint before.
const partSize = 128

// ownSet is a backend set that has chains of its own.
type ownSet struct {
	chain string // "": it has none
	size  int
	parts int // 0: all in one chain
}

// layOut decides whether a set is split.
func (s *ownSet) layOut(size int, affinity bool) {
	if s.size = size; size > partSize && !affinity {
		s.parts = (size + partSize - 1) / partSize
	}
}

// part names a part of a set.
func (p *port) part(set, number int) string {
	return p.chain([2]string{"C", "L"}[set] + strconv.Itoa(number))
}

// setRules are the rules that send to one of the endpoints.
func (c *config) setRules(p *frontend.Port, endpoints []*model.Endpoint) []string {
	targets := targetsOf(endpoints)
	if p.AffinityTimeout > 0 {
		return c.affinityRules(p, targets)
	}
	return balance(nil, protocolMatch(p.Name.Protocol), comment(portComment(p.Name)), targets)
}

func targetsOf(endpoints []*model.Endpoint) []netip.AddrPort {
	list := make([]netip.AddrPort, len(endpoints))
	for i, ep := range endpoints {
		list[i] = ep.Target
	}
	return list
}

// setSet updates the chains of a set; of a set in parts only the parts that have changed.
func (p *plan) setSet(c *frontend.PortChange, i int, old, next *port) {
	nat, before, after := p.tables[inNAT], old.sets[i], next.sets[i]
	for part := after.parts; part < before.parts; part++ {
		nat.drop(old.part(i, part))
	}
	if after.chain == "" {
		if before.chain != "" {
			nat.drop(before.chain)
		}
		return
	}
	set := frontend.RouteSets()[i]
	changes, endpoints := c.EndpointChanges(set), c.Endpoints(set)
	if c.Before != nil && before == after && c.Before.AffinityTimeout == c.After.AffinityTimeout && len(changes) == 0 {
		return
	}
	if after.parts == 0 {
		nat.set(after.chain, p.config.setRules(c.After, endpoints), next.name)
		return
	}
	changed := map[int]bool{}
	for _, ch := range changes {
		changed[ch.Slot/partSize] = true
	}
	for part := range after.parts {
		if changed[part] || before.parts == 0 {
			list := endpoints[part*partSize : min((part+1)*partSize, len(endpoints))]
			nat.set(next.part(i, part), p.config.setRules(c.After, list), next.name)
		}
	}
	if before != after {
		var draw []string
		for part := range after.parts {
			draw = append(draw, chance(partSize, after.size-part*partSize)+"-g "+next.part(i, part))
		}
		nat.set(after.chain, draw, next.name)
	}
}
