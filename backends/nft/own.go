package nft

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Most service ports share chains, and each of their frontends has its own slots. Those with session affinity (S32)
// have their own chains in addition. Those with more than maxSharedSlots slots have their own chains, because a change
// of their size would touch all slots; their slots exist only once, keyed by a number. The package documentation draws
// both.

// maxSharedSlots is how many slots a service port may have in the shared maps.
const maxSharedSlots = 1024

// ownPort is a service port that has its own chains. It is immutable once its plan is made, apart from groups.
type ownPort struct {
	name     string        // the prefix of the names of its chains
	comment  string        // of its chains
	random   string        // the prefix of the names of the chains that pick a slot at random
	affinity time.Duration // the timeout of its session affinity, 0 if it has none
	clients  *dp.Set       // nil if it has none
	scope    uint32        // stands for the port in a set of clients that several share
	ids      [2]uint32     // of its backend sets, in the order of frontend.RouteSets
	protocol model.Protocol
	numbered bool // it has slots by number
	// masquerade is what the chain of each backend set does first, and for all traffic alike.
	masquerade [2]model.Masquerade
	// groups are the endpoints of each backend set that has many, if the port has session affinity. They change with
	// the next plan.
	groups [2]*endpointGroups
	chains []string
	to     [numKinds]string // where the traffic of its frontends of each kind goes
}

// chain returns the name of the chain that sends to an endpoint of a set, and what it does before that.
func (o *ownPort) chain(set model.EndpointSets) (string, model.Masquerade) {
	m := o.masquerade[slices.Index(frontend.RouteSets(), set)]
	return o.name + "-" + setName(set) + suffixOf(m), m
}

// hasNumbers reports whether a service port has slots by number. o is nil if the port has nothing of its own.
func (o *ownPort) hasNumbers() bool { return o != nil && o.numbered }

// isSticky reports whether a service port has session affinity. o is nil if the port has nothing of its own.
func (o *ownPort) isSticky() bool { return o != nil && o.affinity > 0 }

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

// changeOwn plans the own objects of a service port, apart from the chains of its frontends and its slots. It returns
// what it has of its own afterwards, or nil if it needs nothing.
func (p *plan) changeOwn(c *frontend.PortChange, sets *[2]slotsChange, before *ownPort) *ownPort {
	name, after := c.Name(), p.ownOf(c.After, before)
	if before != nil {
		delete(p.base.own, name)
		// Objects that are requested again are not removed, see transactions.
		p.goneChains = append(p.goneChains, before.chains...)
		if before.isSticky() && !after.isSticky() && p.base.clients.leave(name, before.clients) {
			p.goneSets = append(p.goneSets, before.clients.Name)
		}
		if before.numbered && !after.hasNumbers() {
			p.goneIDs = append(p.goneIDs, before.ids[:]...)
		}
	}
	if after == nil {
		return nil
	}
	p.base.own[name] = after
	// The set of clients is new, or none of them has a longer timeout. If everything is planned, the table tells.
	kept := !p.all && (c.Before == nil || after.affinity >= c.Before.AffinityTimeout)
	was := cmp.Or(before, p.shown[name])
	if after.isSticky() {
		if was.isSticky() {
			after.clients = was.clients
		} else {
			after.clients = p.base.clients.join(name)
		}
		kept = p.ensureSet(after.clients) || kept
	}
	for i, set := range frontend.RouteSets() {
		random := p.randomChains(c.After, after, set)
		if len(random) == 0 {
			continue
		}
		var two [2]rules.Chain
		chains := two[:0]
		if after.numbered {
			chains = append(chains, rules.NewChain(random[0], rules.Rule(dp.IsProtocol{Protocol: after.protocol},
				dp.DNATMap{ID: after.ids[i], N: uint32(c.After.Size(set)), Map: p.base.sets[portEndpoints]})))
		}
		if after.isSticky() {
			chains = p.clientChains(chains, after, was, i, &sets[i], random)
		}
		kept = p.ensureOwn(after, chains) || kept
	}
	for _, chain := range after.chains { // some stay as they are
		p.wanted[chain] = true
	}
	if after.isSticky() && !kept {
		p.lowered = append(p.lowered, name)
	}
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
	sum, readable := identify(port.Name)
	o := &ownPort{numbered: numbered, protocol: port.Name.Protocol, comment: dp.Comment(port.Name.String()),
		scope: max(binary.BigEndian.Uint32(sum[16:]), 1)}
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
	suffix := nameOf(sum) + "-" + readable
	o.random = "port-" + suffix
	if o.name = o.random; port.AffinityTimeout > 0 {
		o.name, o.affinity = clientsPrefix+suffix, port.AffinityTimeout
		for i, set := range frontend.RouteSets() {
			o.masquerade[i] = masqueradeOfAll(port, set)
		}
	}
	return o
}

// identify returns a hash of the name of a service port, and a text of bounded length that shows people which port it
// is.
func identify(n model.PortName) (hash [sha256.Size]byte, readable string) {
	protocol := n.Protocol.String()
	hash = sha256.Sum256([]byte(strings.Join([]string{n.Service.Namespace, n.Service.Name, n.Port, protocol}, "\x00")))
	text := n.Service.Namespace + "/" + n.Service.Name + "/" + strings.ToLower(protocol)
	if n.Port != "" {
		text += "/" + n.Port
	}
	const fit = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/-_." // in names, by nft's syntax
	return hash, strings.Map(func(c rune) rune {
		if strings.ContainsRune(fit, c) {
			return c
		}
		return '_'
	}, text[:min(len(text), 32)])
}

// randomChains returns the names of the chains that pick an endpoint of a set at random, and plans those that service
// ports share. A packet finds its slot in one of them. There are none if no endpoint gets traffic as one of the set.
func (p *plan) randomChains(port *frontend.Port, o *ownPort, set model.EndpointSets) (names []string) {
	for kind := range numKinds {
		if port.Size(set) == 0 || port.Count(kind) == 0 || !port.RoutesOf(kind).Sets().Has(set) {
			continue
		}
		if o.numbered {
			return []string{o.random + "-" + setName(set)}
		}
		a := action{set: set, n: port.Size(set), nodePort: kind == frontend.NodePort}
		if name := p.chainFor(actions{fromPod: a, fromNode: a, other: a}); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// masqueradeOfAll returns how all traffic to a backend set is masqueraded, or MasqueradeNever if it is not treated
// alike.
func masqueradeOfAll(port *frontend.Port, set model.EndpointSets) (all model.Masquerade) {
	seen := false
	for kind := range numKinds {
		if port.Count(kind) == 0 {
			continue
		}
		r := port.RoutesOf(kind)
		for _, route := range [...]model.Route{r.FromPod, r.FromNode, r.Other} {
			switch {
			case route.Endpoints != set:
			case seen && route.Masquerade != all:
				return model.MasqueradeNever
			default:
				all, seen = route.Masquerade, true
			}
		}
	}
	return all
}
