package frontend

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is the table of one IP family: all service ports as of the last wave, and as they were last accepted.
type family struct {
	family     model.Family
	all        bool           // Options.AllEndpoints
	localPods  []netip.Prefix // of the node
	owners     owners
	hairpins   refCounted[netip.Addr]
	clusterIPs refCounted[netip.Addr]
	// healthChecks has those of all services, whatever their families.
	healthChecks refCounted[HealthCheck]
	dirty        []*port // that may differ from what was last accepted
	accepted     bool    // changes have been accepted at least once: until then all ports are dirty

	// unreached are the ports whose external frontends all belong to other ports.
	unreached  map[*port]bool
	onExternal func(port model.PortName, f model.Family, owns bool) // of Table.ReportExternal; nil without

	ledger   ledger
	index    int // in the table
	limits   *budget
	excesses excesses
	// reported has the error of the refused ports and that of the ports that exceed limits, from which portErrors was
	// made.
	reported   [2]error
	portErrors error

	full   bool // the backend must not trust its memory
	failed bool // the last Apply failed
	retry  bool // the backend should try again what was refused
	early  bool // the present call of Apply has accepted the changes
}

// newFamily returns a family without service ports, of which the backend has accepted nothing yet.
func newFamily(f model.Family, index int, limits *budget, health *healthPorts) *family {
	return &family{
		family:       f,
		index:        index,
		limits:       limits,
		owners:       newOwners(health),
		hairpins:     newRefCounted(netip.Addr.Compare),
		clusterIPs:   newRefCounted(netip.Addr.Compare),
		healthChecks: newRefCounted(HealthCheck.compare),
		unreached:    map[*port]bool{},
		ledger: ledger{refused: map[*port]*refusal{}, inDoubt: map[*port]bool{}, decided: map[*port]*refusal{},
			obsolete: map[Key]*port{}},
		full: true,
	}
}

// port is a service port in one family.
type port struct {
	family  *family
	service *service
	name    model.PortName

	// current is the port as wanted, nil if it carries no traffic in this family; accepted is the port as it was last
	// accepted. Both may be the same Port: see edit.
	current, accepted *Port

	endpoints endpoints
	spec      *model.ServicePort // the one in its service, nil if that has none
	asked     []Frontend         // all frontends that it asks for, sorted by key
	owned     counts             // those of asked that it has
	// frontends has those that were gained, lost or changed since they were last accepted: zero for those that the port
	// did not have.
	frontends noted[Key, Frontend]

	// The types are small on purpose: 8 more bytes would move a port into the next size of allocations, which is 32
	// bytes larger.
	omitted  int32  // frontends beyond the limit of its service
	demand   int32  // frontends within that limit, whether or not it is served
	wantedIn uint32 // the round in which it was last wanted
	asks     bool   // its service has this port
	excess   excess // why it is not served, or without affinity
	is       traits
	isDirty  bool
}

// traits of a port are limited.
type traits uint8

const (
	sticky     traits = 1 << iota // it asks for affinity; only where that is limited
	restricted                    // source ranges restrict its load-balancer IPs
)

func (p *port) key() portID { return portID{p.family, p.name.Port, p.name.Protocol} }

// mark notes that a port may differ from what was last accepted.
func (p *port) mark() {
	if !p.isDirty {
		p.isDirty = true
		p.family.dirty = append(p.family.dirty, p)
	}
}

// gain records that the port has a frontend from now on.
func (p *port) gain(fr Frontend) {
	p.noteFrontend(fr.Key, Frontend{})
	p.owned[fr.Kind]++
	if fr.Kind == ClusterIP {
		p.family.clusterIPs.add(fr.Addr)
	}
}

// lose records that the port no longer has a frontend.
func (p *port) lose(fr Frontend) {
	p.noteFrontend(fr.Key, fr)
	p.owned[fr.Kind]--
	if fr.Kind == ClusterIP {
		p.family.clusterIPs.remove(fr.Addr)
	}
}

// noteFrontend records a frontend as it is before it changes; zero if the port does not have it.
func (p *port) noteFrontend(k Key, before Frontend) {
	p.mark()
	if p.accepted != nil {
		p.frontends.note(k, before)
	}
}

// isUnused reports whether nothing is known about a port.
func (p *port) isUnused() bool {
	return p.current == nil && p.accepted == nil && !p.isDirty && !p.asks && len(p.endpoints.all) == 0
}

// update records what the service says about a port.
func (p *port) update(next Port, asked []Frontend) {
	before := p.current
	if before != nil {
		next.sizes, next.frontends = before.sizes, before.frontends
	}
	if before == nil || !before.equal(&next) {
		p.mark()
		p.current = new(Port)
		*p.current = next
	}
	p.ask(asked)
	if before == nil || before.Routes != next.Routes {
		p.placeAll()
	}
}

// remove withdraws everything that a port asks for.
func (p *port) remove() {
	if p.current == nil {
		return
	}
	p.mark()
	p.current = nil
	p.ask(nil)
	p.placeAll()
}

// ask replaces the list of frontends that the port asks for. Both lists are sorted.
func (p *port) ask(next []Frontend) {
	if slices.Equal(p.asked, next) {
		return
	}
	f, before, i := p.family, p.asked, 0
	for _, fr := range next {
		for ; i < len(before) && before[i].Key.Compare(fr.Key) < 0; i++ {
			f.owners.remove(p, before[i])
		}
		if i == len(before) || before[i].Key != fr.Key {
			f.owners.add(p, fr)
			continue
		}
		if before[i] != fr {
			f.owners.update(p, before[i], fr)
		}
		i++
	}
	for ; i < len(before); i++ {
		f.owners.remove(p, before[i])
	}
	p.asked = next
	if hasExternal(before) != hasExternal(next) {
		p.mark() // settle finds out whether it owns any
		if f.excesses.of[p] != nil {
			f.excesses.renew(p)
		}
	}
}

// hasExternal reports whether a list has a frontend for outside clients: a node port, a VIP or an external IP.
func hasExternal(list []Frontend) bool {
	return slices.ContainsFunc(list, func(fr Frontend) bool { return fr.Kind != ClusterIP })
}

// isUnreached reports whether others own all external frontends that a port asks for.
func (p *port) isUnreached() bool {
	return hasExternal(p.asked) && p.owned[LoadBalancerIP]+p.owned[ExternalIP]+p.owned[NodePort] == 0
}

// noteUnreached follows whether a port has external frontends.
func (f *family) noteUnreached(p *port) {
	now := p.isUnreached()
	if now == f.unreached[p] {
		return
	}
	if now {
		f.unreached[p] = true
	} else {
		delete(f.unreached, p)
	}
	if f.onExternal != nil {
		f.onExternal(p.name, f.family, !now)
	}
	if f.excesses.of[p] != nil {
		f.excesses.renew(p)
	}
}

// edit returns the port as wanted, to be changed in place. The accepted one does not change.
func (p *port) edit() *Port {
	if p.current == p.accepted {
		clone := *p.current
		p.current = &clone
	}
	return p.current
}

// place puts an endpoint into the sets that it belongs to now.
func (p *port) place(i int, ep *model.Endpoint) {
	var member [numSets]bool
	var used model.EndpointSets
	if p.current != nil && isValid(ep) {
		used = ep.Sets
		member = [numSets]bool{used.Has(model.ClusterSet), used.Has(model.LocalSet),
			used == 0 && (ep.Serving || p.family.all)}
	}
	p.placeIn(i, ep, member, used)
}

// placeIn puts an endpoint into sets. used are those of them that routes use.
func (p *port) placeIn(i int, ep *model.Endpoint, member [numSets]bool, used model.EndpointSets) {
	if p.endpoints.place(i, ep, member) {
		p.mark()
	}
	p.countHairpin(&p.endpoints.all[i], used)
}

func (p *port) placeAll() {
	for i := range p.endpoints.all {
		p.place(i, p.endpoints.all[i].Endpoint)
	}
}

// isValid reports whether traffic can be sent to an endpoint.
func isValid(ep *model.Endpoint) bool { return ep.Target.IsValid() && ep.Target.Port() != 0 }

// setEndpoint creates or replaces an endpoint.
func (p *port) setEndpoint(ep *model.Endpoint) {
	i := p.endpoints.find(ep.Target)
	if i < 0 {
		defer p.charge(p.cost())
		i = p.endpoints.add(endpoint{Endpoint: ep, slots: [numSets]int32{-1, -1, -1}})
	} else if p.endpoints.all[i].Equal(ep) {
		return
	}
	p.place(i, ep)
}

// deleteEndpoint removes an endpoint, if it exists.
func (p *port) deleteEndpoint(target netip.AddrPort) {
	i := p.endpoints.find(target)
	if i < 0 {
		return
	}
	defer p.charge(p.cost())
	p.placeIn(i, p.endpoints.all[i].Endpoint, [numSets]bool{}, 0)
	p.endpoints.remove(i)
	p.mark() // it may be unused now
}

// setNode follows the node.
func (f *family) setNode(node *model.Node, services map[model.ServiceName]*service) {
	local := model.PrefixesOf(f.family, node.LocalPods.CIDRs)
	if slices.Equal(local, f.localPods) {
		return
	}
	f.localPods = local
	for _, s := range services {
		for _, p := range s.ports.all {
			if p.family == f {
				p.placeAll()
			}
		}
	}
}

// pair is two ports that ask for the same keys.
type pair struct{ loser, owner *port }

func (p pair) compare(o pair) int {
	return cmp.Or(p.loser.name.Compare(o.loser.name), p.owner.name.Compare(o.owner.name))
}

// loss is how many keys a port has lost to another one, and the first of them.
type loss struct {
	first Key
	n     int
}

// settle ends a wave: it gives keys their owners, and closes the gaps in backend sets.
func (f *family) settle(report func(Problem)) {
	lost := map[pair]*loss{}
	f.owners.settle(func(loser, owner *port, k Key) {
		l := lost[pair{loser, owner}]
		if l == nil {
			l = &loss{first: k}
			lost[pair{loser, owner}] = l
		}
		l.n++
	})
	for _, p := range slices.SortedFunc(maps.Keys(lost), pair.compare) {
		report(f.inUse(p, lost[p]))
	}
	for _, p := range f.dirty {
		f.noteUnreached(p)
		p.endpoints.compact()
		if p.current == nil {
			continue
		}
		now := p.edit()
		now.frontends = p.owned
		for i := range now.sizes {
			now.sizes[i] = p.endpoints.sets[i].size()
		}
	}
}

// inUse returns the problem of a pair's loser.
func (f *family) inUse(p pair, l *loss) Problem {
	message := fmt.Sprintf("%v belongs to %v", l.first, p.owner.name)
	if l.n > 1 {
		message = fmt.Sprintf("%v and %d more belong to %v", l.first, l.n-1, p.owner.name)
	}
	return Problem{Family: f.family, Port: p.loser.name, Reason: AddressInUse, Owner: p.owner.name, Message: message}
}

// accept makes the next changes relative to the present state, except for refused ports, and forgets ports and services
// of which nothing is left.
func (f *family) accept(t *Table) {
	f.ledger.prepare()
	for _, p := range f.dirty {
		p.isDirty = false
		f.ledger.accept(p)
		if s := p.service; p.isUnused() {
			if s.ports.remove(s.ports.find(p.key())); s.isEmpty() && t.services[s.name] == s {
				t.forget(s)
			}
		}
	}
	f.ledger.finish()
	clear(f.dirty)
	if f.dirty = f.dirty[:0]; cap(f.dirty) > 1024 {
		f.dirty = nil
	}
	f.hairpins.accept()
	f.clusterIPs.accept()
	f.healthChecks.accept()
	f.full, f.accepted = false, true
}

// sorted returns the ports that may have changed or, if all is set, all that exist and are not held, by name.
func (f *family) sorted(services map[model.ServiceName]*service, all bool) []*port {
	list := f.dirty
	if all && f.accepted {
		list = make([]*port, 0, len(services))
		for _, s := range services {
			for _, p := range s.ports.all {
				if p.family == f && p.current != nil && !p.isHeld() {
					list = append(list, p)
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b *port) int { return a.name.Compare(b.name) })
	return list
}
