package iptables

import (
	"cmp"
	"context"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	dp "sigs.k8s.io/kube-proxy-lib/backends/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is the rules of one family: as they are to be, and how far that is in force.
type family struct {
	dataplane dp.Interface
	features  dp.Features
	options   *Options
	machine   *machine
	metrics   *metrics
	config    *config

	nat, filter  *chains
	trees        trees
	node         *model.Node
	described    map[model.ServiceName]*described // the backend's
	services     map[model.ServiceName][]*port
	refused      map[model.PortName]bool // left out
	healthChecks healthChecks
	destinations map[key]*destination
	hairpins     map[netip.Addr]int            // how many service ports have it as an endpoint
	jumps        map[dp.Table][]dp.BuiltinRule // in force

	// known: what the tables hold is what nat and filter say. Otherwise everything is read and compared.
	known bool
	// resync: the next Sync trusts nothing of this. failed is the error of the last one: while it is set and the tables are
	// not known, only a resync touches them.
	resync     bool
	failed     error
	generation uint64 // of the tables, as they were left
	noBPF      bool   // the kernel has no match bpf
	suspect    bool   // somebody else has changed something, perhaps of ours
	unrepaired bool   // a repair has failed
	// unreadable are the tables that could not be read when everything was to be compared, until they are written.
	unreadable map[dp.Table]bool
	all        []*family
}

// trees are the trees of chains. Those of node ports have no addresses.
type trees struct {
	services  [numMasquerades][]*tree // by protocol
	nodePorts [numMasquerades][]*tree
	refuse    []*tree
	refuseNP  []*tree
	// healthChecks are the node ports of health checks, to which traffic is accepted (S38).
	healthChecks *tree
	hairpins     *tree // of addresses, where the kernel cannot compare them
}

// destination is an address and port, or node port, with the service ports that want it. Nothing keeps two services from listing the same external IP
// and port; then the one with the lowest kind has it, and among equals the first by name. The others get it as soon as
// that one goes.
type destination struct {
	claims  []claim // sorted
	inTrees front   // what is in the trees
	owner   model.PortName
	losers  []model.PortName // that were told
}

type claim struct {
	name  model.PortName
	front *front
}

func compareClaims(a, b claim) int {
	return cmp.Or(cmp.Compare(a.front.kind, b.front.kind), a.name.Compare(b.name))
}

func newFamily(d dp.Interface, b *Backend) *family {
	f := &family{dataplane: d, features: d.Features(), options: &b.options, machine: b.machine, described: b.services,
		nat: newChains(dp.NAT), filter: newChains(dp.Filter), refused: map[model.PortName]bool{},
		services: map[model.ServiceName][]*port{}, destinations: map[key]*destination{}, hairpins: map[netip.Addr]int{}, jumps: map[dp.Table][]dp.BuiltinRule{}}
	f.healthChecks = healthChecks{map[model.ServiceName]uint16{}, map[uint16][]model.ServiceName{}}
	f.trees.healthChecks = newTree(f.filter, healthCheckChain, model.TCP)
	f.trees.hairpins = newTree(f.nat, chainPrefix+"HAIRPIN", noProtocol)
	for _, p := range protocols() {
		name := map[model.Protocol]string{model.TCP: "TCP", model.UDP: "UDP", model.SCTP: "SCTP"}[p]
		for m, infix := range [numMasquerades]string{masqNever: "", masqUnlessPod: "P-", masqAlways: "M-"} {
			f.trees.services[m] = append(f.trees.services[m], newTree(f.nat, chainPrefix+infix+name, p))
			f.trees.nodePorts[m] = append(f.trees.nodePorts[m], newTree(f.nat, chainPrefix+"NP-"+infix+name, p))
		}
		f.trees.refuse = append(f.trees.refuse, newTree(f.filter, chainPrefix+"F-"+name, p))
		f.trees.refuseNP = append(f.trees.refuseNP, newTree(f.filter, chainPrefix+"F-NP-"+name, p))
	}
	return f
}

// sync puts what is described in force, of which some has changed.
func (f *family) sync(ctx context.Context, node *model.Node, changed map[model.ServiceName]*described) error {
	f.node = node
	if f.config != nil && !newConfig(f.features, f.options, f.machine, node).equal(f.config) {
		changed = f.described // the rules of all may be others
	} else if len(f.refused) > 0 {
		changed = maps.Clone(changed)
		for name := range f.refused {
			if d := f.described[name.Service]; d != nil {
				changed[name.Service] = d
			}
		}
	}
	clear(f.refused)
	f.plan(ctx, changed)
	if f.failed != nil && !f.known && !f.resync {
		return f.failed
	}
	err := f.apply(ctx)
	if err != nil && ctx.Err() == nil {
		err = f.leaveOut(ctx, err)
	}
	return err
}

// plan works out what the tables are to hold, from the services that changed. It changes nothing in force.
func (f *family) plan(ctx context.Context, changed map[model.ServiceName]*described) {
	f.config = newConfig(f.features, f.options, f.machine, f.node)
	keys := map[key]bool{}
	for name, d := range changed {
		f.changeService(ctx, name, d, keys)
	}
	for k := range keys {
		f.settle(ctx, k)
	}
	f.planBase()
}

// changeService notes what ports of a service claim now, and makes their own chains.
func (f *family) changeService(ctx context.Context, name model.ServiceName, d *described, keys map[key]bool) {
	f.setHealthCheck(name, d.service)
	olds := f.services[name]
	news := f.config.newPorts(ctx, d, olds)
	news = slices.DeleteFunc(news, func(p *port) bool { return f.refused[p.Name] })
	own := map[string]bool{}
	for _, p := range news {
		for _, c := range p.chains {
			own[c.name] = true
			f.chainsOf(c).set(c.name, c.rules, p.Name.String())
		}
	}
	for _, p := range olds {
		for _, c := range p.chains {
			if !own[c.name] {
				f.chainsOf(c).drop(c.name)
			}
		}
		for _, a := range p.Hairpins {
			f.countHairpin(a, -1)
		}
		for i := range p.fronts {
			keys[p.fronts[i].key] = true
			s := f.destinations[p.fronts[i].key]
			if at, ok := slices.BinarySearchFunc(s.claims, claim{p.Name, &p.fronts[i]}, compareClaims); ok {
				s.claims = slices.Delete(s.claims, at, at+1)
			}
		}
	}
	for _, p := range news {
		for _, a := range p.Hairpins {
			f.countHairpin(a, 1)
		}
		for i := range p.fronts {
			fr := &p.fronts[i]
			keys[fr.key] = true
			s := f.destinations[fr.key]
			if s == nil {
				s = &destination{}
				f.destinations[fr.key] = s
			}
			cl := claim{p.Name, fr}
			if at, ok := slices.BinarySearchFunc(s.claims, cl, compareClaims); !ok {
				s.claims = slices.Insert(s.claims, at, cl)
			}
		}
	}
	if f.services[name] = news; len(news) == 0 {
		delete(f.services, name)
	}
}

func (f *family) chainsOf(c ownChain) *chains {
	if c.filter {
		return f.filter
	}
	return f.nat
}

// settle gives a destination to the service port that is first in line, in the trees.
func (f *family) settle(ctx context.Context, k key) {
	s := f.destinations[k]
	have, haveOwner := s.inTrees, s.owner
	var want front
	var owner model.PortName
	if len(s.claims) > 0 {
		want, owner = *s.claims[0].front, s.claims[0].name
	}
	s.tellLosers(ctx, owner)
	sameOwner := owner == haveOwner
	if !have.to.equal(want.to) || have.masquerade != want.masquerade || !sameOwner {
		old, new := f.tree(k, have.masquerade), f.tree(k, want.masquerade)
		if !have.to.isZero() && (old != new || want.to.isZero()) {
			old.remove(k)
		}
		if !want.to.isZero() {
			new.set(&entry{key: k, owner: owner, to: want.to})
		}
	}
	if !have.refuse.equal(want.refuse) || !sameOwner {
		t := f.refuseTree(k)
		if want.refuse.isZero() {
			t.remove(k)
		} else {
			t.set(&entry{key: k, owner: owner, to: want.refuse})
		}
	}
	s.inTrees, s.owner = want, owner
	if len(s.claims) == 0 {
		delete(f.destinations, k)
	}
}

// tellLosers logs which service ports do not get what they want, once.
func (s *destination) tellLosers(ctx context.Context, owner model.PortName) {
	if len(s.claims) <= 1 {
		s.losers = nil
		return
	}
	losers := make([]model.PortName, 0, len(s.claims)-1)
	for _, c := range s.claims[1:] {
		if losers = append(losers, c.name); !slices.Contains(s.losers, c.name) {
			klog.FromContext(ctx).Info("An address and port, or node port, belongs to another service port", "port", c.name, "owner", owner)
		}
	}
	s.losers = losers
}

func (f *family) tree(k key, m masq) *tree {
	if k.addr.IsValid() {
		return f.trees.services[m][protocolIndex(k.protocol)]
	}
	return f.trees.nodePorts[m][protocolIndex(k.protocol)]
}

func (f *family) refuseTree(k key) *tree {
	if k.addr.IsValid() {
		return f.trees.refuse[protocolIndex(k.protocol)]
	}
	return f.trees.refuseNP[protocolIndex(k.protocol)]
}
