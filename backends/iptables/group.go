package iptables

import (
	"iter"
	"slices"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// group is the frontends of one leaf that have the same number of endpoints. They share the draw of a random number: a
// chain with a rule for each number jumps to a chain that has one endpoint of each frontend. A rule without a draw
// costs the kernel about half as much at each change of the table.
//
//	KPL-P-TCP-80.03/10      a chance of 1 in 10 -> KPL-P-TCP-80.03/10/0, of 1 in 9 -> KPL-P-TCP-80.03/10/1, ...
//	KPL-P-TCP-80.03/10/0    the first endpoint of each frontend that has 10
type group struct {
	leaf    *node
	name    string // of the chain that draws
	size    int    // endpoints of each
	members []*entry
}

// minGroup is the minimum number of frontends in a group: enough to save more rules than the draw adds.
const minGroup = 8

func (g *group) slotName(i int) string { return g.name + "/" + strconv.Itoa(i) }

// rules implements content: the draw.
func (g *group) rules() []string {
	rules := make([]string, 0, g.size)
	for i := range g.size {
		rules = append(rules, chance(1, g.size-i)+"-g "+g.slotName(i))
	}
	return rules
}

func (g *group) owners() iter.Seq[model.PortName] { return ownersOf(g.members) }

// slot is the chain of one of the numbers.
type slot struct {
	*group
	number int
}

// rules implements content.
func (s slot) rules() []string {
	rules := make([]string, 0, len(s.members))
	for _, e := range s.members {
		rules = append(rules, s.rule(e))
	}
	return rules
}

// rule returns the rule of one member.
func (s slot) rule(e *entry) string {
	note := ""
	if s.number == 0 {
		note = comment(portComment(e.owner))
	}
	return e.match(s.leaf.first < s.leaf.last) + note + dnat(e.to.endpoints[s.number])
}

func ownersOf(entries []*entry) iter.Seq[model.PortName] {
	return func(yield func(model.PortName) bool) {
		for _, e := range entries {
			if !yield(e.owner) {
				return
			}
		}
	}
}

// grouped is entries by the group that they are in, by its number of endpoints. At 0 are those in no group.
type grouped [maxInline + 1][]*entry

func byGroup(entries []*entry) (groups grouped) {
	var sizes [maxInline + 1]int
	for _, e := range entries {
		sizes[len(e.to.endpoints)]++
	}
	for _, e := range entries {
		n := len(e.to.endpoints)
		if n < 2 || sizes[n] < minGroup {
			n = 0
		} else if groups[n] == nil {
			groups[n] = make([]*entry, 0, sizes[n])
		}
		groups[n] = append(groups[n], e)
	}
	return groups
}

// passed returns how many rules a packet for the last entry has to walk past.
func (g *grouped) passed() (n int) {
	for _, e := range g[0] {
		n += max(1, len(e.to.endpoints))
	}
	for size, members := range g[1:] {
		if members != nil {
			n += 1 + (1+size)/2 + len(members)
		}
	}
	return n
}

// regroup updates the groups of a leaf that has changed, and touches the chains that differ.
func (n *node) regroup(groups grouped) {
	chains := n.tree.chains
	touched := !slices.Equal(groups[0], n.single)
	n.single = groups[0]
	for size := 2; size <= maxInline; size++ {
		g, members := n.groups[size], groups[size]
		switch {
		case g != nil && members != nil:
			g.replace(members)
		case g != nil:
			n.groups[size] = nil
			chains.drop(g.name)
			for i := range size {
				chains.drop(g.slotName(i))
			}
			touched = true
		case members != nil:
			g = &group{n, n.name + "/" + strconv.Itoa(size), size, members}
			n.groups[size] = g
			chains.put(g.name, g)
			for i := range size {
				chains.put(g.slotName(i), slot{g, i})
			}
			touched = true
		}
	}
	if touched {
		chains.touch(n.name)
	}
}

// replace replaces the members, and touches the chains of the numbers for which they differ.
func (g *group) replace(members []*entry) {
	for i := range g.size {
		if !slices.EqualFunc(g.members, members, func(a, b *entry) bool {
			return a == b || a.key == b.key && a.owner == b.owner && a.to.endpoints[i] == b.to.endpoints[i]
		}) {
			g.leaf.tree.chains.touch(g.slotName(i))
		}
	}
	g.members = members
}
