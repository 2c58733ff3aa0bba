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
	contacts contacts
	// dead are endpoints to which a connection failed, with the time until which others are preferred.
	dead map[netip.AddrPort]time.Time

	connections atomic.Int64 // TCP connections at present

	// These belong to the family; connections do not use them.
	keys   map[frontend.Key]frontend.Frontend
	failed map[frontend.Key]error // those of keys that are not served
	round  uint64                 // of the last full state that has this port
}

// newPort returns a port. remembered counts the clients with affinity of all ports.
func newPort(remembered *atomic.Int64) *port {
	return &port{members: map[netip.AddrPort]*[3]int{}, contacts: contacts{all: remembered},
		dead: map[netip.AddrPort]time.Time{}, keys: map[frontend.Key]frontend.Frontend{},
		failed: map[frontend.Key]error{}}
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

// update applies a change, and reports whether a kind of frontend has begun or ceased to refuse connections.
func (p *port) update(c *frontend.PortChange) (turned bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// External addresses have the routes of node ports.
	clusterIP, nodePort := p.isRefusing(frontend.ClusterIP), p.isRefusing(frontend.NodePort)
	if c.Before == nil {
		p.sets = [3][]netip.AddrPort{}
		clear(p.members)
	}
	p.spec = *c.After
	for i, set := range frontend.BackendSets() {
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
	if p.spec.AffinityTimeout == 0 {
		p.contacts.clear()
	}
	return clusterIP != p.isRefusing(frontend.ClusterIP) || nodePort != p.isRefusing(frontend.NodePort)
}

func (p *port) count(target netip.AddrPort, set, by int) {
	n := p.members[target]
	if n == nil {
		n = new([3]int)
		p.members[target] = n
	}
	if n[set] += by; *n == [3]int{} {
		delete(p.members, target)
		delete(p.dead, target)
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
	return p.isRefusing(k)
}

// isRefusing is refuses with p.mu held.
func (p *port) isRefusing(k frontend.Kind) bool {
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
	last     bool          // there is no endpoint left that was not tried
}

// decide returns what happens to a new connection to a frontend. An endpoint that was tried without success is not
// chosen again: without any other, the connection is rejected.
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
	d := decision{endpoint: p.choose(endpoints, set, from.addr, tried), last: len(tried) == len(endpoints)-1}
	if !d.endpoint.IsValid() {
		return decision{verdict: model.Reject}
	}
	return d
}

// choose returns an endpoint for a client that was not tried, the zero AddrPort if there is none. p.mu is held.
func (p *port) choose(endpoints []netip.AddrPort, set int, client netip.Addr, tried []netip.AddrPort) netip.AddrPort {
	now := time.Now()
	if p.spec.AffinityTimeout == 0 {
		return p.random(endpoints, tried, now)
	}
	c := p.contacts.byClient[client]
	if n := p.members[c.endpoint]; n == nil || n[set] == 0 || now.Sub(c.at) >= p.spec.AffinityTimeout ||
		slices.Contains(tried, c.endpoint) || p.isDead(c.endpoint, now) {
		if c.endpoint = p.random(endpoints, tried, now); !c.endpoint.IsValid() {
			return c.endpoint
		}
	}
	c.at = now
	p.contacts.put(client, c)
	p.sweepLater()
	return c.endpoint
}

// sweepPause is the shortest time between two sweeps of the clients of a port.
const sweepPause = time.Minute

// sweepLater forgets clients some time after their affinity has ended. p.mu is held.
func (p *port) sweepLater() {
	if p.contacts.sweeping || len(p.contacts.byClient) == 0 {
		return
	}
	p.contacts.sweeping = true
	time.AfterFunc(max(p.spec.AffinityTimeout, sweepPause), func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.contacts.sweeping = false
		p.contacts.sweep(time.Now().Add(-p.spec.AffinityTimeout))
		p.sweepLater()
	})
}

// deadTime is how long other endpoints are preferred to one to which a connection failed.
const deadTime = 10 * time.Second

func (p *port) isDead(endpoint netip.AddrPort, now time.Time) bool {
	return now.Before(p.dead[endpoint])
}

// random returns an endpoint that was not tried, preferably one that is not dead, or the zero AddrPort.
func (p *port) random(endpoints, tried []netip.AddrPort, now time.Time) (second netip.AddrPort) {
	first := rand.IntN(len(endpoints))
	for i := range min(len(endpoints), len(tried)+len(p.dead)+1) {
		e := endpoints[(first+i)%len(endpoints)]
		switch {
		case slices.Contains(tried, e):
		case !p.isDead(e, now):
			return e
		case !second.IsValid():
			second = e
		}
	}
	return second
}

// remove forgets the clients of a port that is gone.
func (p *port) remove() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.contacts.clear()
}

// markDead records that a connection of a client to an endpoint failed.
func (p *port) markDead(endpoint netip.AddrPort, client netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.members[endpoint] != nil {
		p.dead[endpoint] = time.Now().Add(deadTime)
	}
	if c, known := p.contacts.byClient[client]; known && c.endpoint == endpoint {
		p.contacts.forget(client)
	}
}

// connected notes that a connection to an endpoint was made.
func (p *port) connected(endpoint netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.dead, endpoint)
}
