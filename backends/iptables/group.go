package iptables

import (
	"iter"
	"slices"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// group is frontends of one leaf that all have the same number of endpoints. They share the draw of a random number:
// a chain with a rule for each number leads on to a chain that has one endpoint of each frontend. A rule that need
// not draw itself costs the kernel about half, with each change of the table.
//
//	KPL-P-TCP-80.03/10      a chance of 1 in 10 -> KPL-P-TCP-80.03/10/0, of 1 in 9 -> KPL-P-TCP-80.03/10/1, ...
//	KPL-P-TCP-80.03/10/0    the first endpoint of each frontend that has 10
type group struct {
	leaf    *node
	size    int // endpoints of each
	members []*entry
}

// minGroup is how many frontends make a group: enough that the draw's own rules are outweighed by those saved.
const minGroup = 8

func (g *group) name() string { return g.leaf.name + "/" + strconv.Itoa(g.size) }

// jump returns the rule of the leaf that leads to the draw.
func (g *group) jump() string { return "-j " + g.name() }

func (g *group) slotName(i int) string { return g.name() + "/" + strconv.Itoa(i) }

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

// sizes counts entries by how many endpoints they have.
type sizes [maxInline + 1]int

func sizesOf(entries []*entry) (s sizes) {
	for _, e := range entries {
		s[len(e.to.endpoints)]++
	}
	return s
}

// share tells whether entries with so many endpoints are in a group.
func (s *sizes) share(endpoints int) bool { return endpoints >= 2 && s[endpoints] >= minGroup }

// byGroup divides entries into those that are in no group and those of each group, by their number of endpoints.
func byGroup(entries []*entry) (single []*entry, groups map[int][]*entry) {
	sizes := sizesOf(entries)
	for _, e := range entries {
		n := len(e.to.endpoints)
		if !sizes.share(n) {
			single = append(slices.Grow(single, len(entries)-len(single)), e)
			continue
		}
		if groups == nil {
			groups = map[int][]*entry{}
		}
		groups[n] = append(slices.Grow(groups[n], sizes[n]-len(groups[n])), e)
	}
	return single, groups
}

// passed returns how many rules a packet for the last entry has to pass by.
func passed(entries []*entry) int {
	n := 0
	sizes := sizesOf(entries)
	for size, count := range sizes {
		if sizes.share(size) {
			n += 1 + size/2 + count
		} else {
			n += max(1, size) * count
		}
	}
	return n
}

// regroup updates the groups of a leaf that has changed, and touches the chains that differ.
func (n *node) regroup() {
	chains := n.tree.chains
	single, groups := byGroup(n.leaf)
	touched := !slices.Equal(single, n.single)
	n.single = single
	n.groups = slices.DeleteFunc(n.groups, func(g *group) bool {
		if groups[g.size] != nil {
			return false
		}
		chains.drop(g.name())
		for i := range g.size {
			chains.drop(g.slotName(i))
		}
		touched = true
		return true
	})
	for size, members := range groups {
		at, there := slices.BinarySearchFunc(n.groups, size, func(g *group, size int) int { return g.size - size })
		if there {
			n.groups[at].replace(members)
			continue
		}
		g := &group{n, size, members}
		n.groups = slices.Insert(n.groups, at, g)
		chains.put(g.name(), g)
		for i := range size {
			chains.put(g.slotName(i), slot{g, i})
		}
		touched = true
	}
	if touched {
		chains.touch(n.name)
	}
}

// replace replaces the members, and touches the chains of the numbers for which they differ.
func (g *group) replace(members []*entry) {
	chains := g.leaf.tree.chains
	for i := range g.size {
		if !slices.EqualFunc(g.members, members, func(a, b *entry) bool {
			return a == b || a.key == b.key && a.owner == b.owner && a.to.endpoints[i] == b.to.endpoints[i]
		}) {
			chains.touch(g.slotName(i))
		}
	}
	g.members = members
}
