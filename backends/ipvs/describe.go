package ipvs

import (
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	nft "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// describeService is DescribeService in one family.
func (f *family) describeService(n model.ServiceName, c *frontend.Changes, ports []*frontend.PortChange) string {
	d := &description{family: f, filter: newFilter(nil, f.filter.key)}
	d.filter.there = true
	for _, pc := range ports {
		d.add(pc)
	}
	for _, h := range c.All().HealthChecks().Added { // answered in both families, whatever those of the service
		if h.Service == n {
			d.addElements(healthCheck(h.NodePort))
		}
	}
	return d.text()
}

// description has the kernel's objects for a service in one family.
type description struct {
	family  *family
	servers []*server
	filter  *filter // has the service's part of the family's
}

// add adds a service port.
func (d *description) add(c *frontend.PortChange) {
	p := d.family.ports.byName[c.After.Name]
	if p == nil {
		return
	}
	for s := range p.servers {
		if s.shown != "" {
			d.addElements(s.element())
		}
		if !s.exists {
			continue
		}
		d.servers = append(d.servers, s)
		if s.key.Mark == 0 {
			d.addElements(guards(s.key.Addr)...)
		}
	}
	for _, set := range frontend.RouteSets() {
		for _, ep := range c.Endpoints(set) {
			d.addElements(hairpin(ep.Target.Addr()))
		}
	}
}

// addElements adds those elements that the filter should have, and the chains that they point at.
func (d *description) addElements(list ...element) {
	for _, e := range list {
		if _, wanted := d.family.filter.elements[e.set].Wanted(e.key); wanted {
			d.filter.set(e)
			d.addChain(e.value)
		}
	}
}

func (d *description) addChain(name string) {
	leaf, wanted := d.family.filter.chains.Wanted(name)
	if !wanted || d.filter.has(name) {
		return
	}
	c := leaf.Get()
	d.filter.addChain(*c.Chain)
	for _, set := range c.rangesSets() {
		if ranges, wanted := d.family.filter.ranges.Wanted(set); wanted {
			d.filter.ranges.Get(set).Set(ranges.Get())
		}
	}
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

// text returns the virtual servers, and then the commands for nft.
func (d *description) text() string {
	commands := d.filter.transaction(false).Text()
	if len(d.servers) == 0 && commands == "" {
		return ""
	}
	text := fmt.Sprintf("# %v\n", d.family.key)
	slices.SortFunc(d.servers, func(x, y *server) int { return x.key.Compare(y.key) })
	for _, s := range d.servers {
		if s.key.Mark != 0 { // chains have it in hexadecimal, and ipvsadm in decimal
			text += fmt.Sprintf("# mark 0x%08x\n", s.key.Mark)
		}
		text += s.text()
	}
	return text + commands
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
