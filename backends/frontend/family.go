package frontend

import (
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// family is the table of one IP family: all service ports as of the last wave, and what of them was last accepted.
type family struct {
	family     model.Family
	localPods  []netip.Prefix // of the node
	owners     owners
	hairpins   counted[netip.Addr]
	clusterIPs counted[netip.Addr]
	// healthChecks are of all services, whatever their families.
	healthChecks counted[HealthCheck]
	existing     int     // ports that exist
	dirty        []*port // that may differ from what was last accepted

	full   bool // the backend is to trust nothing
	failed bool // the last Apply failed
	retry  bool // what was refused is to be tried again
}

// newFamily returns a family of which the backend knows nothing yet.
func newFamily(f model.Family) *family {
	return &family{
		family:       f,
		owners:       newOwners(),
		hairpins:     newCounted(netip.Addr.Compare),
		clusterIPs:   newCounted(netip.Addr.Compare),
		healthChecks: newCounted(HealthCheck.compare),
		full:         true,
	}
}

// port is a service port in one family.
type port struct {
	family  *family
	service *service

	current  Port
	exists   bool // current is described, and carries traffic in this family
	accepted Port // as last accepted
	known    bool // accepted is set

	endpoints endpoints
	asked     []Frontend // all that it asks for, sorted by key
	omitted   int        // frontends beyond the limit
	lost      int        // how many of asked others have
	// frontends has those that were gained, lost or changed since they were last accepted, as they were then: zero for
	// those that the port did not have.
	frontends map[Key]Frontend
	clusterIP netip.Addr
	numbers   [2]uint16 // port and node port

	isDirty   bool
	described uint64 // the round in which it was last described
}

func (p *port) name() model.PortName { return p.current.Name }

func (p *port) id() portID { return portID{p.family, p.current.Name.Port, p.current.Name.Protocol} }

// mark notes that a port may differ from what was last accepted.
func (p *port) mark() {
	if !p.isDirty {
		p.isDirty = true
		p.family.dirty = append(p.family.dirty, p)
	}
}

// noteFrontend remembers a frontend as it is, before it changes; zero if the port does not have it.
func (p *port) noteFrontend(k Key, before Frontend) {
	p.mark()
	if _, noted := p.frontends[k]; noted || !p.known {
		return
	}
	if p.frontends == nil {
		p.frontends = map[Key]Frontend{}
	}
	p.frontends[k] = before
}

// isUnused tells whether nothing is known of a port.
func (p *port) isUnused() bool {
	return !p.exists && !p.known && !p.isDirty && len(p.endpoints.list) == 0
}

// describe takes over what a service says of a port.
func (p *port) describe(next Port, asked []Frontend) {
	next.sizes, next.frontends = p.current.sizes, p.current.frontends
	existed, routes := p.exists, p.current.Routes
	if !existed || !p.current.equal(&next) {
		p.mark()
	}
	if p.current, p.exists = next, true; !existed {
		p.family.existing++
	}
	clusterIP := netip.Addr{}
	if i := slices.IndexFunc(asked, func(fr Frontend) bool { return fr.Kind == ClusterIP }); i >= 0 {
		clusterIP = asked[i].Addr
	}
	p.countClusterIP(clusterIP)
	p.ask(asked)
	if !existed || routes != next.Routes {
		p.placeAll()
	}
}

// remove withdraws everything that a port asks for.
func (p *port) remove() {
	if !p.exists {
		return
	}
	p.mark()
	p.exists = false
	p.family.existing--
	p.countClusterIP(netip.Addr{})
	p.ask(nil)
	p.placeAll()
}

func (p *port) countClusterIP(a netip.Addr) {
	if p.clusterIP == a {
		return
	}
	if p.clusterIP.IsValid() {
		p.family.clusterIPs.remove(p.clusterIP)
	}
	if p.clusterIP = a; a.IsValid() {
		p.family.clusterIPs.add(a)
	}
}

// ask replaces the list of frontends that the port asks for. Both lists are sorted.
func (p *port) ask(next []Frontend) {
	o := &p.family.owners
	i, j := 0, 0
	for i < len(p.asked) || j < len(next) {
		var c int
		switch {
		case i == len(p.asked):
			c = 1
		case j == len(next):
			c = -1
		default:
			c = p.asked[i].Key.Compare(next[j].Key)
		}
		switch {
		case c < 0:
			o.remove(p, p.asked[i].Key)
			i++
		case c > 0:
			o.add(p, next[j])
			j++
		default:
			if p.asked[i] != next[j] {
				o.update(p, next[j])
			}
			i, j = i+1, j+1
		}
	}
	p.asked = next
}

// place puts an endpoint into the sets that it belongs to now.
func (p *port) place(i int, ep *model.Endpoint) {
	var member [numSets]bool
	used := ep.Sets & p.current.Routes.Sets()
	if p.exists && isValid(ep) {
		member = [numSets]bool{used.Has(model.ClusterSet), used.Has(model.LocalSet), used == 0 && ep.Serving}
	}
	if p.endpoints.place(i, ep, member) {
		p.mark()
	}
	for s := range p.current.sizes {
		p.current.sizes[s] = p.endpoints.sets[s].size()
	}
	entry := &p.endpoints.list[i]
	hairpin := (member[0] || member[1]) && p.reachesItself(ep, used)
	if hairpin != entry.hairpin {
		if entry.hairpin = hairpin; hairpin {
			p.family.hairpins.add(ep.Target.Addr())
		} else {
			p.family.hairpins.remove(ep.Target.Addr())
		}
	}
}

func (p *port) placeAll() {
	for i := range p.endpoints.list {
		p.place(i, p.endpoints.list[i].Endpoint)
	}
}

// isValid tells whether traffic can be sent to an endpoint.
func isValid(ep *model.Endpoint) bool { return ep.Target.IsValid() && ep.Target.Port() != 0 }

// reachesItself tells whether a connection from an endpoint to itself might keep its source address without S29.
// Endpoints of this node always count; others only where a route takes them, so that there are few.
func (p *port) reachesItself(ep *model.Endpoint, used model.EndpointSets) bool {
	if ep.Local {
		return true
	}
	asPod := slices.ContainsFunc(p.family.localPods, func(r netip.Prefix) bool { return r.Contains(ep.Target.Addr()) })
	keeps := func(r model.Route, isSource bool) bool {
		return used.Has(r.Endpoints) && isSource &&
			(r.Masquerade == model.MasqueradeNever || r.Masquerade == model.MasqueradeUnlessLocalPod && asPod)
	}
	r := p.current.Routes
	return keeps(r.ClusterIP, true) || keeps(r.External, true) || keeps(r.ExternalFromPod, asPod)
}

// setEndpoint creates or replaces an endpoint.
func (p *port) setEndpoint(ep *model.Endpoint) {
	i := p.endpoints.find(ep.Target)
	if i < 0 {
		i = p.endpoints.add(ep)
	} else if p.endpoints.list[i].Equal(ep) {
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
	p.place(i, &model.Endpoint{Port: p.name(), Target: target}) // in no set
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
		for _, p := range s.ports {
			if p.family == f {
				p.placeAll()
			}
		}
	}
}

// pair is two ports that ask for the same keys.
type pair struct{ loser, owner *port }

// settle ends a wave: keys get their owners, and backend sets have no gaps any more.
func (f *family) settle(report func(Problem)) {
	lost := map[pair][]Key{}
	changed := f.owners.settle(func(loser, owner *port, k Key) {
		lost[pair{loser, owner}] = append(lost[pair{loser, owner}], k)
	})
	for _, p := range changed {
		p.mark()
	}
	for _, p := range f.inUse(lost) {
		report(p)
	}
	for _, p := range f.dirty {
		p.endpoints.compact()
		p.current.frontends = len(p.asked) - p.lost
	}
}

// inUse returns a problem for each pair, in order.
func (f *family) inUse(lost map[pair][]Key) []Problem {
	list := make([]Problem, 0, len(lost))
	for pr, keys := range lost {
		owner, key := pr.owner.name(), slices.MinFunc(keys, Key.Compare)
		message := fmt.Sprintf("%v belongs to %v", key, owner)
		if len(keys) > 1 {
			message = fmt.Sprintf("%v and %d more belong to %v", key, len(keys)-1, owner)
		}
		list = append(list, Problem{Family: f.family, Port: pr.loser.name(), Reason: AddressInUse, Owner: owner,
			Message: message})
	}
	slices.SortFunc(list, Problem.compare)
	return list
}

// accept makes the present state the one that the next changes are relative to. It returns the services of ports of
// which nothing is left.
func (f *family) accept() map[*service]bool {
	unused := map[*service]bool{}
	for _, p := range f.dirty {
		p.accepted, p.known, p.isDirty, p.frontends = p.current, p.exists, false, nil
		for s := range p.endpoints.sets {
			p.endpoints.sets[s].accept(p.exists)
		}
		if p.isUnused() {
			unused[p.service] = true
		}
	}
	clear(f.dirty)
	if f.dirty = f.dirty[:0]; cap(f.dirty) > 1024 {
		f.dirty = nil
	}
	f.hairpins.accept()
	f.clusterIPs.accept()
	f.healthChecks.accept()
	f.full = false
	return unused
}

// sorted returns the ports that may have changed or, if all is set, all that exist, by name.
func (f *family) sorted(services map[model.ServiceName]*service, all bool) []*port {
	list := f.dirty
	if all && f.existing != countExisting(f.dirty) {
		list = make([]*port, 0, f.existing)
		for _, s := range services {
			for _, p := range s.ports {
				if p.family == f && p.exists {
					list = append(list, p)
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b *port) int { return a.name().Compare(b.name()) })
	return list
}

func countExisting(ports []*port) int {
	n := 0
	for _, p := range ports {
		if p.exists {
			n++
		}
	}
	return n
}
