package localstate

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
)

// contests finds which of the entries of an address win a target of any port (S17). Slices may have thousands of ports
// that the Service does not have, and list the same addresses. So targets are in classes: those of a class are in the
// same groups. The classes of all groups together are never more than their ports. Thousands of addresses may each be
// in other slices, and to decide one takes all classes of its groups: so those of a group with many are bits, of which
// one step decides 64.
type contests struct {
	numbered bool
	won      []uint64 // bits of the classes that are won in the present contest
	round    uint32
	steps    int // classes and words that were looked at, for tests
	// known has which groups win a class, by the groups in the order of their best entries. An address adds one key at
	// most, of a few bytes for each of its groups.
	known map[string][]bool

	// scratch space
	best []entry
	key  []byte
}

// reset forgets what is known of the entries. It keeps only memory for the entries of one address.
func (c *contests) reset() { *c = contests{best: c.best, key: c.key} }

// readyWinners returns the ready ones among the entries of one address that win a target, at most one of each group.
// The others need not be looked at, because they win nothing that a ready one has. The result is valid until the next
// call.
func (e *entries) readyWinners(same []entry) []entry {
	t, c := &e.ports, &e.ports.contests
	t.group(e)
	c.best = c.best[:0]
	contested := false
	for _, x := range same {
		if slice := e.slices[x.slice]; len(slice.ports) > 0 && slice.flags(int(x.at)).has(flagReady) {
			c.best = append(c.best, x)
			contested = contested || t.groupOf[x.slice] != t.groupOf[c.best[0].slice]
		}
	}
	if !contested {
		if len(c.best) == 0 {
			return nil
		}
		return append(c.best[:0], slices.MinFunc(c.best, e.prefer))
	}
	slices.SortFunc(c.best, e.prefer)
	t.number()
	c.round++
	n := 0
	c.key = c.key[:0]
	for _, x := range c.best {
		if g := t.groupOf[x.slice]; t.groups[g].round != c.round {
			t.groups[g].round = c.round
			c.key = binary.AppendUvarint(c.key, uint64(g))
			c.best[n] = x
			n++
		}
	}
	c.best = c.best[:n]
	wins, known := c.known[string(c.key)]
	if !known {
		wins = t.contest()
		c.known[string(c.key)] = wins
	}
	n = 0
	for i, x := range c.best {
		if wins[i] {
			c.best[n] = x
			n++
		}
	}
	return c.best[:n]
}

// contest returns which of the best entries of some groups, in order, win a class that no better one has won.
func (t *portTable) contest() []bool {
	c := &t.contests
	wins := make([]bool, len(c.best))
	for i, x := range c.best {
		g := &t.groups[t.groupOf[x.slice]]
		c.steps += len(g.classes) + len(g.classBits)
		for w, classes := range g.classBits {
			wins[i] = wins[i] || classes&^c.won[w] != 0
			c.won[w] |= classes
		}
		for _, class := range g.classes {
			w, bit := class/64, uint64(1)<<(class%64)
			wins[i] = wins[i] || c.won[w]&bit == 0
			c.won[w] |= bit
		}
	}
	for _, x := range c.best { // takes no longer than to set them
		g := &t.groups[t.groupOf[x.slice]]
		for _, class := range g.classes {
			c.won[class/64] = 0
		}
		if g.classBits != nil {
			clear(c.won)
			break
		}
	}
	return wins
}

// prefer orders entries of one address by which of them wins a target that they both have, see settle.
func (e *entries) prefer(a, b entry) int {
	x, y := e.slices[a.slice], e.slices[b.slice]
	flags := x.flags(int(a.at))
	later := cmp.Compare(b.at, a.at)
	if flags.has(flagTerminating) {
		later = -later
	}
	return cmp.Or(cmp.Compare(flags.rank(), y.flags(int(b.at)).rank()), strings.Compare(x.name, y.name), later)
}

// number fills in the classes of the groups. It looks at each of their ports once. Each group splits every class into
// the targets that it has and those that it lacks; targets that it lists twice are split off again.
func (t *portTable) number() {
	c := &t.contests
	if c.numbered {
		return
	}
	c.numbered, c.known = true, map[string][]bool{}
	var (
		targets = map[slicePort]int32{}
		ofGroup = make([][]int32, len(t.groups)) // the targets that a group has
		classOf []int32                          // by target
		split   = []int32{0}                     // by class: where its targets go if the group has them
	)
	for g := range t.groups {
		first := int32(len(split)) // of the group's classes
		own := make([]int32, 0, len(t.groups[g].ports))
		for _, p := range t.groups[g].ports {
			target, known := targets[p]
			if !known {
				target = int32(len(classOf))
				targets[p], classOf = target, append(classOf, 0)
			}
			class := classOf[target]
			if split[class] < first {
				split[class] = int32(len(split))
				split = append(split, 0)
			}
			classOf[target] = split[class]
			own = append(own, target)
		}
		ofGroup[g] = own
	}
	clear(split) // from here on, one more than the number of a class that is left
	classes := int32(0)
	for target, class := range classOf {
		if split[class] == 0 {
			classes++
			split[class] = classes
		}
		classOf[target] = split[class] - 1
	}
	c.won = make([]uint64, (classes+63)/64)
	noted := make([]int32, classes) // by class: the last group that has it, from 1
	for g, own := range ofGroup {
		n := 0
		for _, target := range own {
			if class := classOf[target]; noted[class] != int32(g+1) {
				noted[class] = int32(g + 1)
				own[n] = class
				n++
			}
		}
		t.groups[g].setClasses(own[:n], len(c.won))
	}
}

// setClasses stores the classes of a group, as bits if they are fewer words of these.
func (g *portGroup) setClasses(list []int32, words int) {
	if len(list) <= words {
		g.classes = slices.Clone(list) // does not keep a longer list
		return
	}
	g.classBits = make([]uint64, words)
	for _, class := range list {
		g.classBits[class/64] |= 1 << (class % 64)
	}
}
