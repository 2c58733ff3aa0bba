package nft

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Most service ports share chains, and each of their frontends has its own slots. Those with session affinity (S32)
// have their own chains in addition. Those with more than maxSharedSlots slots, all of which a change of their size
// would touch, have their own chains, and their slots only once, keyed by a number. The package documentation draws
// both.
//
// The entries of clients of a removed endpoint are left to time out: the rules that look for them are gone.

// clientsPrefix is the prefix of the names of sets of clients.
const clientsPrefix = "affinity-"

// maxSharedSlots is how many slots a service port may have in the shared maps.
const maxSharedSlots = 1024

// ownPort is a service port that has its own chains. It is immutable once its plan is made.
type ownPort struct {
	name     string    // the prefix of the names of its chains
	clients  string    // the name of the set of its clients, "" without session affinity
	numbered bool      // it has slots by number
	random   string    // the prefix of the names of the chains that pick one of these at random
	ids      [2]uint32 // of its backend sets, in the order of frontend.RouteSets
	chains   []string
	to       [numKinds]string // where the traffic of its frontends of each kind goes
}

// chain returns the name of the chain that sends to an endpoint of a set.
func (o *ownPort) chain(set model.EndpointSets) string { return o.name + "-" + setName(set) }

// randomChain returns the name of the chain that sends to one of the slots by number, at random.
func (o *ownPort) randomChain(set model.EndpointSets) string { return o.random + "-" + setName(set) }

// hasNumbers reports whether a service port has slots by number. o is nil if the port has nothing of its own.
func (o *ownPort) hasNumbers() bool { return o != nil && o.numbered }

// wantsNumbers reports whether a service port should have slots by number.
func wantsNumbers(p *frontend.Port) bool {
	endpoints, used := 0, p.Routes.Sets()
	for _, set := range frontend.RouteSets() {
		if used.Has(set) {
			endpoints += p.Size(set)
		}
	}
	return p.NumFrontends()*endpoints > maxSharedSlots
}

// changeOwn plans the own objects of a service port, apart from the chains of its frontends. It returns what it has of
// its own afterwards, or nil if it needs nothing.
func (p *plan) changeOwn(c *frontend.PortChange, before *ownPort) *ownPort {
	after := p.ownOf(c.After, before)
	own := cmp.Or(after, before)
	if own == nil {
		return nil
	}
	for i, set := range frontend.RouteSets() {
		was := before.hasNumbers() && c.Before.Routes.Sets().Has(set)
		is := after.hasNumbers() && c.After.Routes.Sets().Has(set)
		p.changeSlots(portEndpoints, string(dp.AppendNumber(nil, own.ids[i])), c, set, was, is)
	}
	// Objects that are requested again are not removed, see transactions.
	if before != nil {
		p.goneChains = append(p.goneChains, before.chains...)
		if before.clients != "" {
			p.goneSets = append(p.goneSets, before.clients)
		}
	}
	if before.hasNumbers() && !after.hasNumbers() {
		p.goneIDs = append(p.goneIDs, before.ids[:]...)
	}
	if after == nil {
		delete(p.base.own, c.Name())
		return nil
	}
	p.base.own[c.Name()] = after
	p.planOwn(c, after)
	return after
}

// ownOf returns the own objects that a service port should have, except for its chains, or nil if it needs none.
func (p *plan) ownOf(port *frontend.Port, before *ownPort) *ownPort {
	if port == nil || port.NumFrontends() == 0 {
		return nil
	}
	numbered := wantsNumbers(port)
	if !numbered && port.AffinityTimeout == 0 {
		return nil
	}
	n, o := port.Name, &ownPort{numbered: numbered}
	sum := sha256.Sum256([]byte(strings.Join([]string{n.Service.Namespace, n.Service.Name, n.Port, n.Protocol.String()},
		"\x00")))
	switch {
	case before.hasNumbers():
		o.ids = before.ids
	case numbered:
		for i, set := range frontend.RouteSets() {
			id := binary.BigEndian.Uint32(sum[8:]) + uint32(set)
			for p.base.ids[id] { // another backend set has it
				id++
			}
			o.ids[i], p.base.ids[id] = id, true
		}
	}
	// The name of a set has little but a hash: for each rule that uses a set the kernel compares its name with those of
	// all sets, which takes longer the longer the names are.
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
	suffix := hash + "-" + readable(n)
	o.random = "port-" + suffix
	if o.name = o.random; port.AffinityTimeout > 0 {
		o.name, o.clients = clientsPrefix+suffix, clientsPrefix+hash
	}
	return o
}

// kindsFor lists the kinds of the service port's frontends that send traffic to a backend set.
func kindsFor(port *frontend.Port, set model.EndpointSets) []frontend.Kind {
	var kinds []frontend.Kind
	for kind := range numKinds {
		if port.Count(kind) > 0 && port.RoutesOf(kind).Sets().Has(set) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// readable is the part of the names of chains that shows people which service port they belong to. Its length is
// bounded.
func readable(n model.PortName) string {
	text := n.Service.Namespace + "/" + n.Service.Name + "/" + strings.ToLower(n.Protocol.String())
	if n.Port != "" {
		text += "/" + n.Port
	}
	const fit = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-_." // in names, by nft's syntax
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(fit, c) {
			return c
		}
		return '_'
	}, text[:min(len(text), 32)])
}

// planOwn plans the set of clients of a service port, and the chains that send to an endpoint of each of its sets.
func (p *plan) planOwn(c *frontend.PortChange, o *ownPort) {
	if o.clients != "" {
		if p.wantedSets[o.clients] = true; !p.base.extraSets[o.clients] {
			p.base.extraSets[o.clients] = true
			p.newSets = append(p.newSets, clientsSet(c.After, o))
		}
	}
	for i, set := range frontend.RouteSets() {
		if c.After.Size(set) == 0 || len(kindsFor(c.After, set)) == 0 {
			continue
		}
		if o.numbered {
			ch := rules.NewChain(o.randomChain(set), rules.Rule(dp.IsProtocol{Protocol: c.After.Name.Protocol},
				dp.DNATMap{ID: o.ids[i], N: uint32(c.After.Size(set)), Map: p.base.sets[portEndpoints]}))
			ch.Comment = comment(c.After)
			p.ensure(ch, o)
		}
		if o.clients != "" {
			p.ensure(p.clientsChain(c, o, set), o)
		}
	}
}

// clientsChain keeps clients with their endpoints.
func (p *plan) clientsChain(c *frontend.PortChange, o *ownPort, set model.EndpointSets) rules.Chain {
	clients := clientsSet(c.After, o)
	ch := rules.NewChain(o.chain(set))
	ch.Comment = comment(c.After)
	endpoints := make([]netip.AddrPort, 0, c.After.Size(set))
	for _, ep := range c.Endpoints(set) {
		endpoints = append(endpoints, ep.Target)
	}
	slices.SortFunc(endpoints, model.CompareTargets) // otherwise the chain would differ after a restart
	// There may be very many of these rules, so they share the statements that they have in common.
	n := len(endpoints)
	ch.Rules = make([]dp.Rule, 2*n, 2*n+2)
	for i, ep := range endpoints {
		id := endpointID(ep)
		known := []dp.Statement{dp.InSet{Set: clients, ID: id},
			dp.Refresh{Set: clients, ID: id, Timeout: c.After.AffinityTimeout},
			dp.IsProtocol{Protocol: c.After.Name.Protocol}, dp.DNAT{To: ep}}
		ch.Rules[i].Statements, ch.Rules[n+i].Statements = known, known[1:]
		if left := n - i; left > 1 {
			ch.Rules[n+i].Statements = append([]dp.Statement{dp.OneIn{N: uint32(left)}}, known[1:]...)
		}
	}
	// For clients that do not fit into the set. A chain in which the packet finds no slot returns.
	random := p.randomChains(c.After, o, set)
	last := len(random) - 1
	for _, name := range random[:last] {
		ch.Rules = append(ch.Rules, rules.Commented(fullComment, dp.Jump{Chain: name}))
	}
	ch.Rules = append(ch.Rules, rules.Commented(fullComment, dp.Goto{Chain: random[last]}))
	return ch
}

// fullComment is the comment of the rules for clients that do not fit into the set.
const fullComment = "if the set is full"

// randomChains returns the names of the chains that pick an endpoint of a set at random, and plans those that do not
// exist yet. A packet finds its slot in one of them.
func (p *plan) randomChains(port *frontend.Port, o *ownPort, set model.EndpointSets) []string {
	if o.numbered {
		return []string{o.randomChain(set)}
	}
	var names []string
	for _, kind := range kindsFor(port, set) {
		a := action{set: set, n: port.Size(set), nodePort: kind == frontend.NodePort}
		if name := p.chainFor(actions{fromPod: a, fromNode: a, other: a}); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// clientsSet is the set of the clients of a service port with session affinity.
func clientsSet(port *frontend.Port, o *ownPort) *dp.Set {
	s := &dp.Set{Name: o.clients, Key: []dp.Field{dp.SourceAddr, dp.Constant}, Dynamic: true}
	if port != nil {
		s.Comment = comment(port)
	}
	return s
}

// endpointID is the number of an endpoint in the set of clients. It is the same after a restart.
func endpointID(ep netip.AddrPort) uint32 {
	sum := sha256.Sum256(dp.AppendPort(dp.AppendAddr(nil, ep.Addr()), ep.Port()))
	return max(binary.BigEndian.Uint32(sum[:]), 1)
}

// comment names a service port in listings.
func comment(p *frontend.Port) string { return dp.Escape(p.Name.String(), 120) }
