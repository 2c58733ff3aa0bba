package iptables

import (
	"context"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is the backend in one IP family: the wanted rules, and what is known about the tables.
type family struct {
	backend   *Backend
	dataplane dp.Interface
	features  dp.Features
	config    *config

	// What is wanted.
	nat, filter *chains
	trees       map[treeKey]*tree
	// healthChecks are the node ports of health checks, to which traffic is accepted: if the policy of INPUT is to
	// drop, load balancers would not use the node (S38).
	healthChecks *tree
	hairpins     *tree // of addresses, where the kernel has no match bpf to compare them with
	noBPF        bool
	ports        map[model.PortName]*port
	leftOut      map[model.PortName]leftOut // refused, and in no chain or tree

	// What is there.
	state      state
	generation uint64 // of the tables, as they were left
	failed     error  // error of the last Sync, apart from those of service ports that are left out
}

// state is how much is known about the tables of a family. The package documentation has the transitions.
type state uint8

const (
	unknown    state = iota // nothing, at first and after a failed Sync: the next one reads and compares
	unrepaired              // nothing, after a failed repair: the next look, or Sync, reads and compares
	suspect                 // they are as chains say, unless another program has changed something: the next look reads
	known                   // they are as chains say, as far as iptables can print them
)

// isTrusted reports whether writing only the changes is enough.
func (s state) isTrusted() bool { return s >= suspect }

// treeKey identifies a tree of frontends.
type treeKey struct {
	table      int
	isNodePort bool             // these have no addresses
	masquerade model.Masquerade // in table nat
	protocol   model.Protocol
}

func newFamily(b *Backend, d dp.Interface) *family {
	f := &family{backend: b, dataplane: d, features: d.Features(), nat: newChains(dp.NAT), filter: newChains(dp.Filter),
		trees: map[treeKey]*tree{}, ports: map[model.PortName]*port{}, leftOut: map[model.PortName]leftOut{}}
	f.healthChecks = &tree{chains: f.filter, name: healthCheckChain, protocol: model.TCP}
	f.hairpins = &tree{chains: f.nat, name: chainPrefix + "HAIRPIN", protocol: noProtocol}
	return f
}

// apply applies the changes to the tables. It returns a [*sink.PortError] for each service port that is left out.
func (f *family) apply(ctx context.Context, c *frontend.Changes) error {
	if c.Full() {
		f.state = unknown
		o := &f.backend.options
		if o.LocalhostNodePorts && o.NodePortAddresses.Loopback() && c.Family() == model.IPv4 {
			f.backend.kernel.allowLocalnet(ctx)
		}
	}
	f.plan(ctx, c)
	if f.failed == nil || c.Retry() { // a failed family is left alone until its retry
		f.failed = f.write(ctx)
		if f.failed != nil && ctx.Err() == nil {
			f.failed = f.leaveOut(ctx, c, f.failed)
		}
	}
	c.Accept() // chains know what is not in the tables yet
	err := f.joinLeftOut(f.failed)
	if ctx.Err() != nil {
		f.failed = nil // cancelled, not refused
	}
	if err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	return nil
}

// plan works out the wanted content of the tables. It does not touch them, except to try again what was refused.
func (f *family) plan(ctx context.Context, c *frontend.Changes) {
	before := f.config
	f.config = newConfig(f.features, f.backend, c.Node())
	changes := c.Difference()
	var taken []*frontend.PortChange
	if f.failed == nil || c.Retry() {
		taken = f.tryLeftOut(ctx, c, changes)
	}
	for p := range changes.Ports() {
		f.planPort(p)
	}
	for _, p := range taken {
		f.planPort(p)
	}
	if before != nil && !before.localPods.Equal(f.config.localPods) { // it may change the rules of any port
		for p := range c.All().Ports() {
			f.planPort(p)
		}
	}
	f.planHealthChecks(changes)
	if f.noBPF {
		f.planHairpins(changes.Hairpins())
	}
	f.planBase()
}

// planHealthChecks accepts health checks, even those of services that have only the other family: the node answers on
// its addresses of both.
func (f *family) planHealthChecks(c *frontend.Changes) {
	changes, t := c.HealthChecks(), f.healthChecks
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

// The places of the tables in what family.tables returns, and in other arrays.
const (
	inNAT = iota
	inFilter
)

func (f *family) tables() [2]*chains { return [2]*chains{f.nat, f.filter} }

// treeOf returns the tree for a frontend in a table.
func (f *family) treeOf(k frontend.Key, table int, t traffic) *tree {
	if table == inFilter {
		t.masquerade = 0
	}
	return f.tree(treeKey{table, k.IsNodePort(), t.masquerade, k.Protocol})
}

// tree returns a tree of frontends, creating it if necessary.
func (f *family) tree(k treeKey) *tree {
	t := f.trees[k]
	if t == nil {
		name := chainPrefix
		if k.table == inFilter {
			name += "F-"
		}
		if k.isNodePort {
			name += "NP-"
		}
		switch k.masquerade {
		case model.MasqueradeUnlessLocalPod:
			name += "P-"
		case model.MasqueradeAlways:
			name += "M-"
		}
		t = &tree{chains: f.tables()[k.table], name: name + k.protocol.String(), protocol: k.protocol}
		f.trees[k] = t
	}
	return t
}
