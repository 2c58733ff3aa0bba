package ipvs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

var _ sink.Describer = (*Backend)(nil)

// DescribeService implements [sink.Describer]. For each family it returns the virtual servers of a service with their
// real servers, as "ipvsadm -Sn" prints them, and its elements in the packet filter with the chains that they point at,
// which it may share with others, as commands for nft. The virtual servers are as the kernel was last known to have
// them; real servers of weight 0 take no new connections. It waits for a Sync in progress.
func (b *Backend) DescribeService(_ context.Context, name model.ServiceName) (string, error) {
	var text strings.Builder
	b.View(name, func(c *frontend.Changes, ports []*frontend.PortChange) {
		f := b.families[c.Family()]
		d := &description{family: f, filter: newFilter(nil, f.filter.key)}
		d.filter.there = true
		for _, pc := range ports {
			d.add(pc)
		}
		d.write(&text)
	})
	return text.String(), nil
}

// description has the kernel's objects for a service in one family.
type description struct {
	family  *family
	servers []*server
	filter  *filter // has the service's part of the family's
}

// add adds a service port.
func (d *description) add(c *frontend.PortChange) {
	f := d.family
	p := f.ports[c.After.Name]
	if p == nil {
		return
	}
	for s := range p.servers {
		if !s.exists || f.owner[s] != p {
			continue
		}
		d.servers = append(d.servers, s)
		if s.key.Mark == 0 {
			for _, e := range guards(s.key.Addr) {
				d.addElement(e)
			}
		}
	}
	for e := range p.elements {
		if f.elementOwner[e] == p {
			d.addElement(e)
		}
	}
	for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
		for _, ep := range c.Endpoints(set) {
			d.addElement(hairpin(ep.Target.Addr()))
		}
	}
}

// addElement adds an element, if the filter should have it, and the chains that it points at.
func (d *description) addElement(e element) {
	leaf, wanted := d.family.filter.elements[e.set].Wanted(e.key)
	if !wanted {
		return
	}
	d.filter.set(e, leaf.Get())
	if e.set == serviceIPs {
		d.addChain(leaf.Get())
	}
}

func (d *description) addChain(name string) {
	leaf, wanted := d.family.filter.chains.Wanted(name)
	if !wanted || d.filter.has(name) {
		return
	}
	c := leaf.Get()
	d.filter.addChain(*c.Chain)
	for i := range c.Rules {
		for _, s := range c.Rules[i].Statements {
			switch s := s.(type) {
			case nft.Goto:
				d.addChain(s.Chain)
			case nft.Jump:
				d.addChain(s.Chain)
			}
		}
	}
}

// write writes the virtual servers, and then the commands for nft.
func (d *description) write(b *strings.Builder) {
	commands := d.filter.transaction(false).Text()
	if len(d.servers) == 0 && commands == "" {
		return
	}
	fmt.Fprintf(b, "# %v\n", d.family.key)
	slices.SortFunc(d.servers, func(x, y *server) int { return x.key.Compare(y.key) })
	for _, s := range d.servers {
		if s.key.Mark != 0 { // which chains have in hexadecimal, and ipvsadm has not
			fmt.Fprintf(b, "# mark 0x%08x\n", s.key.Mark)
		}
		b.WriteString(s.text())
	}
	b.WriteString(commands)
}

// text returns the virtual server with its real servers, as the kernel was last known to have them.
func (s *server) text() string {
	var list []dp.Destination
	for _, target := range slices.SortedFunc(maps.Keys(s.destinations), model.CompareTargets) {
		if x := s.destinations[target]; x.weight != absent {
			list = append(list, dp.Destination{Target: target, Weight: x.weight})
		}
	}
	return dp.Text(s.actual, list)
}
