package iptables

import (
	"net/netip"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// maxInline is how many endpoints a frontend may have in a chain that it shares with others. Those that have more get a
// chain of their own, so that the others' packets do not have to pass by.
const maxInline = 16

// partSize is how many endpoints a chain has at most. Bigger sets are in several, of which a first one draws one:
//
//	KPL-CLUSTER-...    a chance of 128 in 300 -> KPL-C0-..., of 128 in 172 -> KPL-C1-..., else -> KPL-C2-...
//
// So an endpoint that changes is a chain of 128 rules, and not of 50,000, and packets pass by few. Sets with session
// affinity are in one chain: a client may have been sent to any endpoint before.
const partSize = 128

// ownSet is a backend set that has chains of its own.
type ownSet struct {
	used     bool
	affinity bool
	size     int
	parts    int // 0: all in one chain
}

// setOf returns the backend set with an index in port.sets.
func setOf(i int) model.EndpointSets {
	if i == 1 {
		return model.LocalSet
	}
	return model.ClusterSet
}

func setIndex(set model.EndpointSets) int {
	if set == model.LocalSet {
		return 1
	}
	return 0
}

func setChain(p model.PortName, set model.EndpointSets) string {
	purpose := chainCluster
	if set == model.LocalSet {
		purpose = chainLocal
	}
	return chainName(purpose, p)
}

// partChain is short: names have 28 characters at most.
func partChain(p model.PortName, set model.EndpointSets, part int) string {
	purpose := "C"
	if set == model.LocalSet {
		purpose = "L"
	}
	return chainName(purpose+strconv.Itoa(part), p)
}

// newOwnSet lays out a set of a port.
func newOwnSet(p *frontend.Port, set model.EndpointSets) ownSet {
	s := ownSet{used: true, affinity: p.AffinityTimeout > 0, size: p.Size(set)}
	if s.size > partSize && !s.affinity {
		s.parts = (s.size + partSize - 1) / partSize
	}
	return s
}

// setRules are those that send to one of the endpoints.
func (c *config) setRules(p *frontend.Port, endpoints []netip.AddrPort) []string {
	if p.AffinityTimeout > 0 {
		return c.affinityRules(p, endpoints)
	}
	match := "-p " + protocolText(p.Name.Protocol)
	return balance(nil, match+comment(portComment(p.Name)), match, endpoints)
}

// planSet has the chains of a set follow. Of a set in parts only those are looked at that have changed.
func (f *family) planSet(c *frontend.PortChange, name model.PortName, i int, old, next ownSet) {
	set := setOf(i)
	for part := next.parts; part < old.parts; part++ {
		f.nat.drop(partChain(name, set, part))
	}
	if !next.used {
		if old.used {
			f.nat.drop(setChain(name, set))
		}
		return
	}
	isSame := c.Before != nil && old == next && c.Before.AffinityTimeout == c.After.AffinityTimeout
	if isSame && len(c.EndpointChanges(set)) == 0 {
		return
	}
	endpoints := c.Endpoints(set)
	if next.parts == 0 {
		f.nat.set(setChain(name, set), f.config.setRules(c.After, targetsOf(endpoints)), name.String())
		return
	}
	planPart := func(part int) {
		list := targetsOf(endpoints[part*partSize : min((part+1)*partSize, len(endpoints))])
		f.nat.set(partChain(name, set, part), f.config.setRules(c.After, list), name.String())
	}
	if c.Before == nil || old.parts == 0 {
		for part := range next.parts {
			planPart(part)
		}
	} else {
		last := -1
		for _, ch := range c.EndpointChanges(set) {
			if part := ch.Slot / partSize; part != last && part < next.parts {
				planPart(part)
				last = part
			}
		}
	}
	if old != next {
		f.nat.set(setChain(name, set), drawPart(name, set, next), name.String())
	}
}

// drawPart is the first chain of a set in parts.
func drawPart(name model.PortName, set model.EndpointSets, s ownSet) []string {
	rules := make([]string, 0, s.parts)
	for part := range s.parts {
		match := ""
		if left := s.size - part*partSize; left > partSize {
			match = "-m statistic --mode random --probability " + dp.Probability(partSize, left) + " "
		}
		rules = append(rules, match+"-g "+partChain(name, set, part))
	}
	return rules
}

// isTouched tells whether one of the chains of a set may be different in the table.
func (s ownSet) isTouched(c *chains, name model.PortName, set model.EndpointSets) bool {
	for part := range s.parts {
		if c.touched[partChain(name, set, part)] {
			return true
		}
	}
	return s.used && c.touched[setChain(name, set)]
}
