package iptables

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// describeService is DescribeService in one family. Chains that belong to the service are shown completely, as is the
// draw that it shares with others; such chains are declared with a colon.
func (f *family) describeService(name model.ServiceName, c *frontend.Changes, ports []*frontend.PortChange) string {
	l := [2]*listing{inNAT: newListing(), inFilter: newListing()}
	for _, h := range c.All().HealthChecks().Added { // answered in both families, whatever those of the service
		if h.Service == name {
			f.healthChecks.listEntry(healthCheckEntry(h), l[inFilter])
		}
	}
	for _, pc := range ports {
		f.listPort(pc, l)
	}
	var text strings.Builder
	if len(l[inNAT].names)+len(l[inFilter].names) > 0 {
		fmt.Fprintf(&text, "# %v\n", c.Family())
	}
	for i, t := range f.tables {
		l[i].write(&text, t.table)
	}
	return text.String()
}

// listPort lists the rules of a service port, in the order in which packets meet them.
func (p *plan) listPort(c *frontend.PortChange, l [2]*listing) {
	planned := p.ports[c.After.Name]
	if planned == nil {
		return // it is left out
	}
	for fr := range c.Frontends() {
		t := planned.traffic[fr.Kind]
		e := &entry{key: fr.Key, owner: planned.name}
		for i, to := range t.to {
			if !to.isZero() {
				p.tree(i, fr.Key, t.masquerade).listEntry(e, l[i])
			}
		}
	}
	for _, s := range planned.shared {
		l[s.table].addWhole(s.name, p.tables[s.table].wanted[s.name].rules())
	}
	for _, own := range planned.chains {
		l[own.table].addWhole(own.name, own.rules)
	}
	whole := func(chain string) { l[inNAT].addWhole(chain, p.tables[inNAT].wanted[chain].rules()) }
	for i, s := range planned.sets {
		if s.chain != "" {
			whole(s.chain)
		}
		for part := range s.parts {
			whole(planned.part(i, part))
		}
	}
	if !p.noBPF {
		return
	}
	for _, set := range frontend.RouteSets() {
		for _, ep := range c.Endpoints(set) {
			p.hairpins.listEntry(&entry{key: hairpinKey(ep.Target.Addr())}, l[inNAT])
		}
	}
}

// listEntry lists the rules that packets for an entry match on their way through the tree, if the entry with this key
// has this owner.
func (t *tree) listEntry(wanted *entry, l *listing) {
	e := t.find(wanted.key)
	if e == nil || e.owner != wanted.owner {
		return
	}
	n := t.top
	for n.children != nil {
		i, _ := n.childIndex(e.key)
		l.add(n.name, n.children[i].jump)
		n = n.children[i]
	}
	size := len(e.to.endpoints)
	g := n.groups[size]
	if g == nil {
		l.add(n.name, e.rules(nil, n.first < n.last)...)
		return
	}
	l.add(n.name, "-j "+g.name)
	l.addWhole(g.name, g.rules())
	for i := range size {
		l.add(g.slotName(i), slot{g, i}.rule(e))
	}
}

// listing is rules of one table: chains in the order in which they were added, no rule twice.
type listing struct {
	names []string
	rules map[string][]string
	whole map[string]bool // chains with all of their rules
}

func newListing() *listing {
	return &listing{rules: map[string][]string{}, whole: map[string]bool{}}
}

// add adds rules of a chain that may have others.
func (l *listing) add(chain string, rules ...string) {
	for _, r := range rules {
		if !slices.Contains(l.rules[chain], r) {
			l.set(chain, append(l.rules[chain], r))
		}
	}
}

// addWhole adds a chain with all of its rules.
func (l *listing) addWhole(chain string, rules []string) {
	l.set(chain, rules)
	l.whole[chain] = true
}

func (l *listing) set(chain string, rules []string) {
	if _, ok := l.rules[chain]; !ok {
		l.names = append(l.names, chain)
	}
	l.rules[chain] = rules
}

// write writes the rules as iptables-save prints them.
func (l *listing) write(b *strings.Builder, table dp.Table) {
	if len(l.names) == 0 {
		return
	}
	fmt.Fprintf(b, "*%s\n", table)
	for _, name := range l.names {
		if l.whole[name] {
			fmt.Fprintf(b, ":%s - [0:0]\n", name)
		}
	}
	for _, name := range l.names {
		for _, rule := range l.rules[name] {
			fmt.Fprintf(b, "-A %s %s\n", name, rule)
		}
	}
	b.WriteString("COMMIT\n")
}
