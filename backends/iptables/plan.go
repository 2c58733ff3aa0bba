package iptables

import (
	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// plan is what the tables of a family should hold. It knows neither the programs nor the kernel.
type plan struct {
	config *config
	tables [2]*chains // at inNAT and inFilter
	trees  map[treeKey]*tree
	// healthChecks are the node ports of health checks, to which traffic is accepted: if the policy of INPUT is to
	// drop, load balancers would not use the node (S38).
	healthChecks *tree
	hairpins     *tree // of addresses, where the kernel has no match bpf to compare them with
	noBPF        bool
	ports        map[model.PortName]*port
	uses         frontend.RefCounts[sharedChain] // of chains, by ports
}

// The places of the tables in arrays.
const (
	inNAT = iota
	inFilter
)

// treeKey identifies a tree of frontends.
type treeKey struct {
	table      int
	isNodePort bool             // these have no addresses
	masquerade model.Masquerade // in table nat
	protocol   model.Protocol
}

func newPlan() *plan {
	nat, filter := newChains(dp.NAT), newChains(dp.Filter)
	return &plan{
		tables: [2]*chains{inNAT: nat, inFilter: filter},
		trees:  map[treeKey]*tree{}, ports: map[model.PortName]*port{},
		healthChecks: &tree{chains: filter, name: healthCheckChain, protocol: model.TCP},
		hairpins:     &tree{chains: nat, name: chainPrefix + "HAIRPIN", protocol: noProtocol},
	}
}

// update follows the changes; before is the configuration before them, if any.
func (p *plan) update(before *config, c, changes *frontend.Changes) {
	for change := range changes.Ports() {
		p.setPort(change)
	}
	if before != nil && !before.localPods.Equal(p.config.localPods) { // it may change the rules of any port
		for change := range c.All().Ports() {
			p.setPort(change)
		}
	}
	p.setHealthChecks(changes)
	if p.noBPF {
		p.setHairpins(changes.Hairpins())
	}
	p.setBase()
}

// setHealthChecks plans the rules that accept health checks, also for services of only the other family: the node
// answers health checks on its addresses of both.
func (p *plan) setHealthChecks(c *frontend.Changes) {
	changes, t := c.HealthChecks(), p.healthChecks
	for _, h := range changes.Removed {
		e := healthCheckEntry(h)
		t.remove(e.key, e.owner)
	}
	come := changes.Added
	if len(changes.Removed) > 0 {
		come = c.All().HealthChecks().Added // others may have the same port, by mistake
	}
	for _, h := range come {
		if e := healthCheckEntry(h); t.find(e.key) == nil {
			t.set(e)
		}
	}
}

func healthCheckEntry(h frontend.HealthCheck) *entry {
	return &entry{frontend.Key{Port: h.NodePort, Protocol: model.TCP}, model.PortName{Service: h.Service},
		target{rule: "-j ACCEPT"}}
}

// tree returns the tree of a frontend in a table, creating it if necessary.
func (p *plan) tree(table int, k frontend.Key, m model.Masquerade) *tree {
	if table == inFilter {
		m = 0
	}
	key := treeKey{table, k.IsNodePort(), m, k.Protocol}
	t := p.trees[key]
	if t == nil {
		name := chainPrefix
		if table == inFilter {
			name += "F-"
		}
		if key.isNodePort {
			name += "NP-"
		}
		switch m {
		case model.MasqueradeUnlessLocalPod:
			name += "P-"
		case model.MasqueradeAlways:
			name += "M-"
		}
		t = &tree{chains: p.tables[table], name: name + k.Protocol.String(), protocol: k.Protocol}
		p.trees[key] = t
	}
	return t
}
