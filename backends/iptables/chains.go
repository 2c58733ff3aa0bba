package iptables

import (
	"maps"
	"slices"
	"strings"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// chains are the chains of a table that are ours: those that are wanted, and which of them the table does not have, or
// not like this.
type chains struct {
	table   dp.Table
	wanted  map[string]content
	there   map[string]int  // chains that the table has, with the number of their rules
	rules   int             // in all of these
	touched map[string]bool // chains that may be different in the table
	// unreadable: iptables could not print the table when it was last read, and nothing was written since.
	unreadable bool
}

// content is what is in a chain. Rules are only made when they are needed: most of the text of a big cluster never is,
// after the first time.
type content interface {
	rules() []string
	owners() []model.PortName
}

// fixed is content that is there already.
type fixed struct {
	lines []string
	owner model.PortName // the zero name: nobody
}

func (f fixed) rules() []string { return f.lines }

func (f fixed) owners() []model.PortName {
	if f.owner == (model.PortName{}) {
		return nil
	}
	return []model.PortName{f.owner}
}

func origin(owners []model.PortName) string {
	names := make([]string, 0, len(owners))
	for _, o := range owners {
		names = append(names, o.String())
	}
	return strings.Join(names, ", ")
}

func newChains(t dp.Table) *chains {
	return &chains{table: t, wanted: map[string]content{}, there: map[string]int{}, touched: map[string]bool{}}
}

// put says that a chain is wanted, with new content.
func (c *chains) put(name string, content content) {
	c.wanted[name] = content
	c.touched[name] = true
}

func (c *chains) touch(name string) { c.touched[name] = true }

func (c *chains) drop(name string) {
	delete(c.wanted, name)
	c.touched[name] = true
}

// set says that a chain is wanted with these rules, if that is news.
func (c *chains) set(name string, lines []string, owner model.PortName) {
	if have, ok := c.wanted[name].(fixed); !ok || have.owner != owner || !slices.Equal(have.lines, lines) {
		c.put(name, fixed{lines, owner})
	}
}

// changes returns what makes the table follow.
func (c *chains) changes() dp.TableBatch {
	b := dp.TableBatch{Table: c.table}
	for _, name := range slices.Sorted(maps.Keys(c.touched)) {
		if content, ok := c.wanted[name]; ok {
			b.Chains = append(b.Chains, dp.Chain{Name: name, Rules: content.rules(), Origin: origin(content.owners())})
		} else if _, ok := c.there[name]; ok {
			b.Remove = append(b.Remove, name)
		}
	}
	return b
}

// done notes that the table has followed the changes.
func (c *chains) done(b dp.TableBatch) {
	for _, chain := range b.Chains {
		c.setThere(chain.Name, len(chain.Rules))
	}
	for _, name := range b.Remove {
		c.setThere(name, 0)
		delete(c.there, name)
	}
	c.untouchAll()
	c.unreadable = false
}

func (c *chains) untouchAll() {
	if len(c.touched) > 64 {
		c.touched = map[string]bool{} // clearing costs as much as the map ever held
	} else {
		clear(c.touched)
	}
}

// setThere notes how many rules a chain of the table has.
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

// compare notes what of the chains is different in the table, now that it has been read.
func (c *chains) compare(s *dp.State) {
	c.there, c.rules, c.touched = map[string]int{}, 0, map[string]bool{}
	for name, rules := range s.Chains {
		c.setThere(name, len(rules))
		if _, ok := c.wanted[name]; !ok {
			c.touched[name] = true
		}
	}
	for name, content := range c.wanted {
		if rules, ok := s.Chains[name]; !ok || !slices.Equal(rules, content.rules()) {
			c.touched[name] = true
		}
	}
}
