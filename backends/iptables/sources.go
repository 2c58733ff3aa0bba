package iptables

import (
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// maxOwnRanges is how many source ranges (S26) a service port has rules of its own for. A longer list has a chain in
// each table, which all ports with that list share: a list costs its ranges once, and not once for each port. Both are
// rendered where the rules of the port are: see render.go, fromRanges.
//
//	KPL-ALLOW-PORT:   -j KPL-SOURCES-LIST, then what the port does with its traffic
//	KPL-SOURCES-LIST: for each range: -s RANGE -j RETURN; then, in table nat, -j ACCEPT: no other program
//	                  translates it either, and table filter drops it; in table filter: -j DROP
const maxOwnRanges = 8

// sources is a long list of source ranges.
type sources struct {
	ranges []netip.Prefix
	chain  string
	rules  []string
}

// sharedChain is a chain that several ports may use.
type sharedChain struct {
	table int
	name  string
}

// sourcesOf returns a long list. It remembers the last one: ports of a service that follow each other have the same.
func (c *config) sourcesOf(ranges []netip.Prefix) *sources {
	if s := c.lastSources; s != nil && len(s.ranges) == len(ranges) && &s.ranges[0] == &ranges[0] {
		return s
	}
	s := &sources{ranges: ranges, rules: make([]string, 0, len(ranges)+1)}
	for _, p := range ranges {
		s.rules = append(s.rules, sourceMatch(p)+"-j RETURN")
	}
	s.chain = chainPrefix + "SOURCES-" + hash(model.PortName{}, s.rules...)
	c.lastSources = s
	return s
}

// rulesIn returns the rules of the list's chain in a table.
func (s *sources) rulesIn(table int) []string {
	end := "-j ACCEPT"
	if table == inFilter {
		end = dropText
	}
	return append(s.rules[:len(s.rules):len(s.rules)], end)
}

// useSources keeps the chains of lists for as long as ports use them.
func (p *plan) useSources(old, next *port) {
	for _, c := range next.shared {
		if p.uses.Add(c) {
			p.tables[c.table].set(c.name, next.sources.rulesIn(c.table))
		}
	}
	for _, c := range old.shared {
		if p.uses.Remove(c) {
			p.tables[c.table].drop(c.name)
		}
	}
}
