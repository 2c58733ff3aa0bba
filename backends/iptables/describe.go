package iptables

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

var _ sink.Describer = (*Backend)(nil)

// DescribeService implements [sink.Describer]: it returns the rules of a service as iptables-save prints them, for each
// family. Chains that belong to the service are shown whole, as is the draw that it shares with others; such chains are
// declared with a colon. Of all other chains only the rules are shown that packets for the service match. It is what
// the backend applies, not read from the kernel; DescribeService waits for a Sync that is under way.
func (b *Backend) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	var text strings.Builder
	b.View(name, func(c *frontend.Changes, ports []*frontend.PortChange) {
		f, l := b.family(c.Family()), newListing(c.Family())
		f.listHealthChecks(name, c.AllHealthChecks(), l) // answered in both families, whatever those of the service
		for _, pc := range ports {
			f.listPort(pc, l)
		}
		l.write(&text)
	})
	return text.String(), nil
}

// listHealthChecks lists the rules for the health checks of a service.
func (f *family) listHealthChecks(name model.ServiceName, all []frontend.HealthCheck, l *listing) {
	for _, h := range all {
		if h.Service == name {
			f.healthChecks.listEntry(healthCheckEntry(h), l.table(inFilter))
		}
	}
}

// listPort lists the rules of a service port, in the order in which packets come by.
func (f *family) listPort(c *frontend.PortChange, l *listing) {
	p := f.ports[c.After.Name]
	if p == nil {
		return // it is left out
	}
	for fr := range c.Frontends() {
		t := p.traffic[classOf(fr)]
		e := &entry{key: fr.Key, owner: p.name}
		if !t.to.isZero() {
			f.tree(treeKey{inNAT, fr.IsNodePort(), t.masquerade, fr.Protocol}).listEntry(e, l.table(inNAT))
		}
		if !t.refuse.isZero() {
			f.tree(treeKey{inFilter, fr.IsNodePort(), 0, fr.Protocol}).listEntry(e, l.table(inFilter))
		}
	}
	for _, own := range p.chains {
		l.table(own.table).addWhole(own.name, own.rules)
	}
	for i, s := range p.sets {
		if s.size == 0 {
			continue
		}
		chains := []string{setChain(p.name, i)}
		for part := range s.parts {
			chains = append(chains, partChain(p.name, i, part))
		}
		for _, chain := range chains {
			l.table(inNAT).addWhole(chain, f.nat.wanted[chain].rules())
		}
	}
	if !f.noBPF {
		return
	}
	for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
		for _, ep := range c.Endpoints(set) {
			f.hairpins.listEntry(&entry{key: hairpinKey(ep.Target.Addr())}, l.table(inNAT))
		}
	}
}

// listEntry lists the rules that packets for an entry match on their way through the tree, if the entry with this key
// has this owner.
func (t *tree) listEntry(wanted *entry, l *tableListing) {
	e := t.top.find(wanted.key)
	if e == nil || e.owner != wanted.owner {
		return
	}
	n := t.top
	for n.children != nil {
		i, _ := n.childIndex(e.key)
		l.add(n.name, n.jumpTo(n.children[i]))
		n = n.children[i].node
	}
	for _, g := range n.groups {
		if !slices.Contains(g.members, e) {
			continue
		}
		l.add(n.name, g.jump())
		l.addWhole(g.name(), g.rules())
		for i := range g.size {
			l.add(g.slotName(i), slot{g, i}.rule(e))
		}
		return
	}
	l.add(n.name, e.rules(nil, n.first < n.last)...)
}

// listing is rules of one family.
type listing struct {
	family model.Family
	tables [2]*tableListing
}

// tableListing is rules of one table: chains in the order in which they were added, no rule twice.
type tableListing struct {
	names  []string
	chains map[string]*listedChain
}

type listedChain struct {
	whole bool
	rules []string
	seen  map[string]bool
}

func newListing(f model.Family) *listing {
	l := &listing{family: f}
	for i := range l.tables {
		l.tables[i] = &tableListing{chains: map[string]*listedChain{}}
	}
	return l
}

func (l *listing) table(i tableIndex) *tableListing { return l.tables[i] }

func (l *tableListing) chain(name string) *listedChain {
	c := l.chains[name]
	if c == nil {
		c = &listedChain{seen: map[string]bool{}}
		l.names, l.chains[name] = append(l.names, name), c
	}
	return c
}

// add adds rules of a chain that may have others.
func (l *tableListing) add(name string, rules ...string) {
	c := l.chain(name)
	for _, r := range rules {
		if !c.seen[r] {
			c.seen[r], c.rules = true, append(c.rules, r)
		}
	}
}

// addWhole adds a chain with all of its rules.
func (l *tableListing) addWhole(name string, rules []string) {
	c := l.chain(name)
	c.whole, c.rules = true, rules
}

// write writes what iptables-save prints of the rules.
func (l *listing) write(b *strings.Builder) {
	if len(l.tables[inNAT].names)+len(l.tables[inFilter].names) == 0 {
		return
	}
	fmt.Fprintf(b, "# %v\n", l.family)
	for i, t := range l.tables {
		if len(t.names) == 0 {
			continue
		}
		fmt.Fprintf(b, "*%s\n", [...]dp.Table{inNAT: dp.NAT, inFilter: dp.Filter}[i])
		for _, name := range t.names {
			if t.chains[name].whole {
				fmt.Fprintf(b, ":%s - [0:0]\n", name)
			}
		}
		for _, name := range t.names {
			for _, rule := range t.chains[name].rules {
				fmt.Fprintf(b, "-A %s %s\n", name, rule)
			}
		}
		b.WriteString("COMMIT\n")
	}
}
