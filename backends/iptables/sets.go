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
	size  int // 0: it has none
	parts int // 0: all in one chain
}

func setChain(p model.PortName, i int) string { return chainName([2]string{"CLUSTER", "LOCAL"}[i], p) }

func partChain(p model.PortName, i, part int) string {
	return chainName([2]string{"C", "L"}[i]+strconv.Itoa(part), p)
}

// newOwnSet lays out a set of a port.
func newOwnSet(p *frontend.Port, set model.EndpointSets) ownSet {
	s := ownSet{size: p.Size(set)}
	if s.size > partSize && p.AffinityTimeout == 0 {
		s.parts = (s.size + partSize - 1) / partSize
	}
	return s
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

// planSet updates the chains of a set; of a set in parts only the parts that have changed.
func (f *family) planSet(c *frontend.PortChange, name model.PortName, i int, old, next ownSet) {
	for part := next.parts; part < old.parts; part++ {
		f.nat.drop(partChain(name, i, part))
	}
	if next.size == 0 {
		if old.size > 0 {
			f.nat.drop(setChain(name, i))
		}
		return
	}
	set := frontend.RouteSets()[i]
	changes, endpoints := c.EndpointChanges(set), c.Endpoints(set)
	if c.Before != nil && old == next && c.Before.AffinityTimeout == c.After.AffinityTimeout && len(changes) == 0 {
		return
	}
	if next.parts == 0 {
		f.nat.set(setChain(name, i), f.config.setRules(c.After, endpoints), name)
		return
	}
	changed := map[int]bool{}
	for _, ch := range changes {
		changed[ch.Slot/partSize] = true
	}
	for part := range next.parts {
		if changed[part] || old.parts == 0 {
			list := endpoints[part*partSize : min((part+1)*partSize, len(endpoints))]
			f.nat.set(partChain(name, i, part), f.config.setRules(c.After, list), name)
		}
	}
	if old != next {
		var draw []string
		for part := range next.parts {
			draw = append(draw, chance(partSize, next.size-part*partSize)+"-g "+partChain(name, i, part))
		}
		f.nat.set(setChain(name, i), draw, name)
	}
}
