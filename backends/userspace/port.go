package userspace

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// port is a service port in one family, as new connections see it.
type port struct {
	mu   sync.Mutex
	spec frontend.Port
	// sets are the cluster set, the local set, and the draining endpoints; members counts each endpoint's occurrences
	// in them.
	sets     [3][]netip.AddrPort
	members  map[netip.AddrPort]*[3]int
	contacts map[netip.Addr]contact

	connections atomic.Int64 // TCP connections at present

	// These two belong to the family; connections do not use them.
	keys  map[frontend.Key]frontend.Frontend
	round uint64 // of the last full state that has this port
}

// contact is the endpoint that a client with session affinity stays with.
type contact struct {
	endpoint netip.AddrPort
	at       time.Time
}

// maxContacts limits the clients with affinity that a port remembers.
const maxContacts = 1 << 16

func newPort() *port {
	return &port{members: map[netip.AddrPort]*[3]int{}, contacts: map[netip.Addr]contact{},
		keys: map[frontend.Key]frontend.Frontend{}}
}

// setIndex is the index of a set in port.sets.
func setIndex(set model.EndpointSets) int {
	switch set {
	case model.ClusterSet:
		return 0
	case model.LocalSet:
		return 1
	}
	return 2
}

// update applies a change.
func (p *port) update(c *frontend.PortChange) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.Before == nil {
		p.sets = [3][]netip.AddrPort{}
		clear(p.members)
	}
	p.spec = *c.After
	for i, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet, frontend.Draining} {
		for _, e := range c.EndpointChanges(set) {
			if e.Before != nil {
				p.count(e.Before.Target, i, -1)
			}
			if e.After == nil {
				continue
			}
			for len(p.sets[i]) <= e.Slot {
				p.sets[i] = append(p.sets[i], netip.AddrPort{})
			}
			p.sets[i][e.Slot] = e.After.Target
			p.count(e.After.Target, i, 1)
		}
		p.sets[i] = p.sets[i][:c.After.Size(set)]
	}
	if p.spec.AffinityTimeout == 0 && len(p.contacts) > 0 {
		p.contacts = map[netip.Addr]contact{} // clearing a map that was once big takes long each time
	}
}

func (p *port) count(target netip.AddrPort, set, by int) {
	n := p.members[target]
	if n == nil {
		n = new([3]int)
		p.members[target] = n
	}
	if n[set] += by; *n == [3]int{} {
		delete(p.members, target)
	}
}

func (p *port) name() model.PortName {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spec.Name
}

// serves reports whether an endpoint still serves any traffic of the port.
func (p *port) serves(target netip.AddrPort) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.members[target] != nil
}

// refuses reports whether a kind of frontend refuses connections from every source.
func (p *port) refuses(k frontend.Kind) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	routes := p.spec.RoutesOf(k)
	for _, r := range []model.Route{routes.FromPod, routes.FromNode, routes.Other} {
		if r.Empty != model.Reject || len(p.sets[setIndex(r.Endpoints)]) > 0 {
			return false
		}
	}
	return true
}

// source is what the choice of a route depends on (S27).
type source struct {
	addr          netip.Addr
	isPod, isNode bool
}

// decision is what happens to a new connection.
type decision struct {
	endpoint netip.AddrPort
	verdict  model.Verdict // without an endpoint
	// source is the address that the endpoint has to see. The zero Addr means any address of the node.
	source netip.Addr
}

// decide returns what happens to a new connection to a frontend. An endpoint that was tried in vain is chosen only if
// there is no other.
func (p *port) decide(fr frontend.Frontend, from source, tried ...netip.AddrPort) decision {
	p.mu.Lock()
	defer p.mu.Unlock()
	inRange := func(r netip.Prefix) bool { return r.Contains(from.addr) }
	if fr.Restricted && !slices.ContainsFunc(p.spec.SourceRanges, inRange) {
		return decision{verdict: model.Drop}
	}
	routes := p.spec.RoutesOf(fr.Kind)
	route := routes.Other
	switch {
	case from.isPod:
		route = routes.FromPod
	case from.isNode:
		route = routes.FromNode
	}
	set := setIndex(route.Endpoints)
	endpoints := p.sets[set]
	if len(endpoints) == 0 {
		return decision{verdict: route.Empty}
	}
	d := decision{endpoint: p.choose(endpoints, set, from.addr, tried)}
	if !from.isMasqueraded(route, fr, d.endpoint) {
		d.source = from.addr
	}
	return d
}

// isMasqueraded reports whether an endpoint sees an address of the node instead of the client's (S27, S28).
func (s source) isMasqueraded(route model.Route, fr frontend.Frontend, endpoint netip.AddrPort) bool {
	switch {
	case s.addr == endpoint.Addr(): // S29
		return true
	case s.addr == fr.Addr, s.addr.IsLoopback(): // a process of the node, by an address that nobody can answer to
		return true
	case route.Masquerade == model.MasqueradeUnlessLocalPod:
		return !s.isPod
	}
	return route.Masquerade == model.MasqueradeAlways
}

// choose returns an endpoint for a client, one that was not tried if there is one. p.mu is held.
func (p *port) choose(endpoints []netip.AddrPort, set int, client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	if p.spec.AffinityTimeout == 0 {
		return random(endpoints, tried)
	}
	now := time.Now()
	c, known := p.contacts[client]
	if !known {
		p.makeRoom()
	}
	if n := p.members[c.endpoint]; n == nil || n[set] == 0 || now.Sub(c.at) >= p.spec.AffinityTimeout ||
		slices.Contains(tried, c.endpoint) {
		c.endpoint = random(endpoints, tried)
	}
	c.at = now
	p.contacts[client] = c
	return c.endpoint
}

// random returns one of the endpoints, one that was not tried if there is one.
func random(endpoints, tried []netip.AddrPort) netip.AddrPort {
	first := rand.IntN(len(endpoints))
	for i := range endpoints {
		if e := endpoints[(first+i)%len(endpoints)]; !slices.Contains(tried, e) {
			return e
		}
	}
	return endpoints[first]
}

// makeRoom forgets a client if there are too many: the one idle for longest among a few. To look at all of them would
// make every new client slow from then on.
func (p *port) makeRoom() {
	if len(p.contacts) < maxContacts {
		return
	}
	var victim netip.Addr
	var oldest time.Time
	seen := 0
	for addr, c := range p.contacts {
		if seen == 0 || c.at.Before(oldest) {
			victim, oldest = addr, c.at
		}
		if seen++; seen == evictFrom {
			break
		}
	}
	delete(p.contacts, victim)
}
