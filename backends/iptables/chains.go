package iptables

import (
	"iter"
	"maps"
	"slices"
	"strings"

	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// chains are our chains in one table: the wanted ones, and those that may differ in the table. A diffstore would
// compare values, and so keep the text of all rules twice.
type chains struct {
	table   dp.Table
	wanted  map[string]content
	there   map[string]int  // chains that the table has, with the number of their rules
	rules   int             // in all of these
	touched map[string]bool // chains that may be different in the table
	// jumps from built-in chains to ours, in order: the wanted ones, and those that the table has.
	wantedJumps, jumps []dp.BuiltinRule
	// inUse are chains that could not be removed, because others jump to them: they are only emptied.
	inUse map[string]bool
	// unreadable: iptables could not print the table when it was last read, and nothing was written since.
	unreadable bool
}

// content is the rules of a chain. They are rendered only when needed: in a big cluster most are rendered once.
type content interface {
	rules() []string
	owners() iter.Seq[model.PortName]
}

// fixed is content that is kept as text.
type fixed struct {
	lines []string
	whose []model.PortName
}

func (f fixed) rules() []string                  { return f.lines }
func (f fixed) owners() iter.Seq[model.PortName] { return slices.Values(f.whose) }

func origin(owners iter.Seq[model.PortName]) string {
	var names []string
	for o := range owners {
		names = append(names, o.String())
	}
	return strings.Join(names, ", ")
}

func newChains(t dp.Table) *chains {
	return &chains{table: t, wanted: map[string]content{}, there: map[string]int{}, touched: map[string]bool{},
		inUse: map[string]bool{}}
}

// put adds a wanted chain, or replaces its content.
func (c *chains) put(name string, content content) {
	c.wanted[name] = content
	c.touched[name] = true
}

func (c *chains) touch(name string) { c.touched[name] = true }

func (c *chains) drop(name string) {
	delete(c.wanted, name)
	c.touched[name] = true
}

// set is put for rules as text. It does nothing if the chain has these rules already.
func (c *chains) set(name string, lines []string, owners ...model.PortName) {
	have, ok := c.wanted[name].(fixed)
	if !ok || !slices.Equal(have.whose, owners) || !slices.Equal(have.lines, lines) {
		c.put(name, fixed{lines, owners})
	}
}

// setOrDrop is set for a chain that is not wanted if it has no rules.
func (c *chains) setOrDrop(name string, lines []string) {
	if len(lines) > 0 {
		c.set(name, lines)
	} else if _, ok := c.wanted[name]; ok {
		c.drop(name)
	}
}

// keepUnwanted makes all chains that are not wanted be emptied only.
func (c *chains) keepUnwanted() {
	for name := range c.there {
		if _, ok := c.wanted[name]; !ok {
			c.inUse[name] = true
		}
	}
}

// changes returns what has to be written to the table, jumps from built-in chains included.
func (c *chains) changes() dp.TableBatch {
	b := dp.TableBatch{Table: c.table, Delete: c.wantedJumps, Insert: c.wantedJumps} // once, whether or not they exist
	if !c.unreadable {
		b.Delete, b.Insert = jumpChanges(c.jumps, c.wantedJumps)
	}
	for _, name := range slices.Sorted(maps.Keys(c.touched)) {
		if content, ok := c.wanted[name]; ok {
			b.Chains = append(b.Chains, dp.Chain{Name: name, Rules: content.rules(), Origin: origin(content.owners())})
		} else if _, ok := c.there[name]; ok && c.inUse[name] {
			b.Chains = append(b.Chains, dp.Chain{Name: name})
		} else if ok {
			b.Remove = append(b.Remove, name)
		}
	}
	return b
}

// growsBy returns by how many rules changes make the table longer.
func (c *chains) growsBy(b dp.TableBatch) (rules int) {
	for _, chain := range b.Chains {
		rules += len(chain.Rules) - c.there[chain.Name]
	}
	for _, name := range b.Remove {
		rules -= c.there[name]
	}
	return rules
}

// done records that the changes are in the table now.
func (c *chains) done(b dp.TableBatch) {
	for _, chain := range b.Chains {
		c.setThere(chain.Name, len(chain.Rules))
	}
	for _, name := range b.Remove {
		c.setThere(name, 0)
		delete(c.there, name)
	}
	c.jumps = c.wantedJumps
	c.untouchAll()
}

// untouchAll records that the table is as wanted.
func (c *chains) untouchAll() {
	c.unreadable = false
	if len(c.touched) > 64 {
		c.touched = map[string]bool{} // clearing a map costs as much as it ever held
	} else {
		clear(c.touched)
	}
}

func (c *chains) setThere(name string, rules int) {
	c.rules += rules - c.there[name]
	c.there[name] = rules
}

// touchAll is for a table that cannot be read: any chain may be different.
func (c *chains) touchAll() {
	for name := range c.wanted {
		c.touched[name] = true
	}
	for name := range c.there {
		c.touched[name] = true
	}
}

// compare touches the chains that differ in the table, which has just been read.
func (c *chains) compare(s *dp.State) {
	c.there, c.rules, c.jumps, c.touched = map[string]int{}, 0, s.Jumps, map[string]bool{}
	for name, rules := range s.Chains {
		c.setThere(name, len(rules))
		if _, ok := c.wanted[name]; !ok && (len(rules) > 0 || !c.inUse[name]) {
			c.touched[name] = true
		}
	}
	for name, content := range c.wanted {
		if rules, ok := s.Chains[name]; !ok || !slices.Equal(rules, content.rules()) {
			c.touched[name] = true
		}
	}
}

// jumpChanges returns the jumps to delete and to insert. New ones come before everything else in their chains; the
// others stay where they are.
func jumpChanges(have, want []dp.BuiltinRule) (gone, come []dp.BuiltinRule) {
	rest := slices.Clone(have)
	for _, w := range want {
		if i := slices.Index(rest, w); i >= 0 {
			rest = slices.Delete(rest, i, i+1)
		} else {
			come = append(come, w)
		}
	}
	return rest, come
}
