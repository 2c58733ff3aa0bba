package ipvs

import (
	"hash/fnv"
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// port is a service port: its virtual servers, and its elements and chains in the packet filter.
type port struct {
	name     model.PortName
	servers  map[*server]model.EndpointSets // and the set that each balances over
	elements map[element]bool
	marks    marks
	chains   map[string]bool // those that set its marks, or go to one that does: no other port has them
	taken    []dp.ServerKey  // where it was found that another program has a virtual server
}

// marks are the packet marks of a port's virtual servers for sources with a backend set different from all others', 0
// for none (S27).
type marks struct{ pod, node uint32 }

// markBits are those that marks are made of. The others are left to the masquerade mark, the kubelet (0x8000), and
// Cilium (0x0f00).
const markBits = 0x7fff00ff

// mark returns the mark of a port, which is the same after a restart unless two ports get the same one by accident.
func (f *family) mark(name model.PortName) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name.String()))
	for m := h.Sum32(); ; m = m*0x9e3779b1 + 1 {
		m := m & markBits &^ f.config.mark
		if owner, taken := f.markOwners[m]; m != 0 && (!taken || owner == name) {
			f.markOwners[m] = name
			return m
		}
	}
}

// marksOf returns the marks that a port needs: one for each kind of source whose set is not that of all others. Marks
// of masqueraded sources have the masquerade bit, too, because IPVS compares the whole mark.
func (f *family) marksOf(p *frontend.Port) (m marks) {
	r := p.RoutesOf(frontend.ExternalIP)
	if r.Other.IsZero() {
		return m
	}
	of := func(route model.Route) uint32 {
		switch {
		case route.Endpoints == r.Other.Endpoints || route.IsZero():
			return 0
		case route.Masquerade == model.MasqueradeNever:
			return f.mark(p.Name)
		}
		return f.mark(p.Name) | f.config.mark
	}
	return marks{pod: of(r.FromPod), node: of(r.FromNode)}
}

// byClient is the scheduler that chooses the endpoint by the client's address.
const byClient = "sh"

// spec is the virtual server of a port with a key.
func (f *family) spec(p *frontend.Port, key dp.ServerKey) dp.Server {
	s := dp.Server{ServerKey: key, Scheduler: f.options.Scheduler, Flags: dp.Owned}
	switch {
	case p.AffinityTimeout > 0 && key.Mark != 0:
		// The kernel sends persistent clients of a virtual server by mark to the port that they connected to, which is
		// not the endpoint's. So the scheduler keeps these clients at their endpoint by their address.
		if s.Scheduler = f.sticky; s.Scheduler == byClient {
			s.Flags |= dp.SourceHashFallback
		}
	case p.AffinityTimeout > 0:
		s.Flags |= dp.Persistent
		s.Persistence = p.AffinityTimeout.Truncate(1e9)
	}
	if s.Scheduler == "mh" {
		s.Flags |= dp.MaglevPort
	}
	return s
}

// keys returns the virtual servers of a frontend: for a node port, one at each of the node's addresses that serve node
// ports, unless a service has exactly that address and port.
func (f *family) keys(c *frontend.PortChange, fr *frontend.Frontend) []dp.ServerKey {
	key := dp.ServerKey{Family: f.key, Addr: fr.Addr, Port: fr.Port, Protocol: fr.Protocol}
	if !fr.IsNodePort() {
		return []dp.ServerKey{key}
	}
	list := make([]dp.ServerKey, 0, len(f.config.nodePortIPs))
	for _, a := range f.config.nodePortIPs {
		if c.Owner(frontend.Key{Addr: a, Port: fr.Port, Protocol: fr.Protocol}) == nil {
			key.Addr = a
			list = append(list, key)
		}
	}
	return list
}

// returnNodePorts serves node ports at addresses and ports that services have given up.
func (f *family) returnNodePorts(c *frontend.Changes) {
	for _, key := range f.freed {
		if p := c.Owner(frontend.Key{Port: key.Port, Protocol: key.Protocol}); p != nil {
			f.describe(p)
		}
	}
	f.freed = nil
}

// change applies the changes of a service port to the wanted state.
func (f *family) change(c *frontend.PortChange) {
	if c.After == nil {
		f.remove(c.Before.Name)
		return
	}
	p := f.ports[c.After.Name]
	if p == nil || c.Before == nil || changesEverywhere(c.Before, c.After) {
		f.describe(c)
		return
	}
	for fr := range c.FrontendChanges() {
		if fr.Before != nil {
			f.withdraw(c, p, fr.Before)
		}
		if fr.After != nil {
			f.serveFrontend(c, p, fr.After)
		}
	}
	changed := map[netip.AddrPort]bool{}
	for _, set := range allSets() {
		for _, e := range c.EndpointChanges(set) {
			for _, ep := range []*model.Endpoint{e.Before, e.After} {
				if ep != nil {
					changed[ep.Target] = true
				}
			}
		}
	}
	if len(changed) == 0 {
		return
	}
	for s, set := range p.servers {
		for target := range changed {
			s.assign(target, roleOf(c, set, target))
		}
		f.dirty[s] = true
	}
}

// changesEverywhere reports whether a change of a port concerns all of its frontends.
func changesEverywhere(b, a *frontend.Port) bool {
	return b.Routes != a.Routes || b.AffinityTimeout != a.AffinityTimeout ||
		!slices.Equal(b.SourceRanges, a.SourceRanges) ||
		slices.ContainsFunc(allSets(),
			func(set model.EndpointSets) bool { return (b.Size(set) == 0) != (a.Size(set) == 0) })
}

func allSets() []model.EndpointSets {
	return []model.EndpointSets{model.ClusterSet, model.LocalSet, frontend.Draining}
}

// roleOf returns the role of an endpoint in a virtual server that balances over a set. An endpoint in another set, or a
// draining one, only serves its existing connections.
func roleOf(c *frontend.PortChange, set model.EndpointSets, target netip.AddrPort) role {
	switch {
	case c.Has(set, target):
		return active
	case slices.ContainsFunc(allSets(), func(other model.EndpointSets) bool { return c.Has(other, target) }):
		return serving
	}
	return gone
}

// describe adds a service port to the wanted state as if it were new.
func (f *family) describe(c *frontend.PortChange) {
	p := c.After
	old := f.ports[p.Name]
	next := &port{name: p.Name, servers: map[*server]model.EndpointSets{}, elements: map[element]bool{},
		marks: f.marksOf(p), chains: map[string]bool{}}
	f.ports[p.Name] = next
	if old != nil {
		f.forgetTaken(old)
	}
	for fr := range c.Frontends() {
		f.serveFrontend(c, next, &fr)
	}
	r := p.RoutesOf(frontend.ExternalIP)
	if m := next.marks.pod; m != 0 {
		f.serve(c, next, dp.ServerKey{Family: f.key, Mark: m}, r.FromPod.Endpoints)
	}
	if m := next.marks.node; m != 0 && m != next.marks.pod {
		f.serve(c, next, dp.ServerKey{Family: f.key, Mark: m}, r.FromNode.Endpoints)
	}
	if old != nil {
		f.release(old)
		f.releaseMarks(p.Name, old, next)
	}
}

// serve makes a virtual server balance over a backend set of a port.
func (f *family) serve(c *frontend.PortChange, p *port, key dp.ServerKey, set model.EndpointSets) {
	s := f.serverFor(key, c.After.Name.Protocol)
	s.want, s.wanted = f.spec(c.After, key), true
	p.servers[s] = set
	if before := f.owner[s]; before != nil && before != p {
		delete(before.servers, s)
	}
	f.owner[s] = p
	f.dirty[s] = true
	if _, there := f.foreign[key]; there && !s.exists {
		f.wantForeign = append(f.wantForeign, key)
	}
	for target := range s.destinations {
		s.assign(target, roleOf(c, set, target))
	}
	for _, ep := range c.Endpoints(set) {
		s.assign(ep.Target, active)
	}
}

// serveFrontend adds a frontend to a port.
func (f *family) serveFrontend(c *frontend.PortChange, p *port, fr *frontend.Frontend) {
	chain := f.dispatchChain(c.After, p, fr.Kind, fr.Restricted)
	for _, key := range f.keys(c, fr) {
		if _, there := f.foreign[key]; there && f.options.excludes(key.Addr) {
			f.taken[key] = p.name
			p.taken = append(p.taken, key)
			continue
		}
		f.serve(c, p, key, c.After.RoutesOf(fr.Kind).Other.Endpoints)
		for _, e := range elementsFor(c.After, key, fr.Restricted) {
			value := ""
			if e.set == serviceIPs {
				value = chain
			}
			p.elements[e] = true
			f.elementOwner[e] = p
			f.filter.set(e, value)
		}
	}
}

// elementsFor returns the elements in the packet filter for a port at one address.
func elementsFor(p *frontend.Port, key dp.ServerKey, restricted bool) []element {
	vip := rules.Key(key.Addr, key.Protocol, key.Port)
	list := []element{{serviceIPs, vip}}
	if restricted {
		for _, e := range rules.SourceElements(vip, p.SourceRanges) {
			list = append(list, element{vipSources, e.Key})
		}
	}
	return list
}

// withdraw takes a frontend from a port.
func (f *family) withdraw(c *frontend.PortChange, p *port, fr *frontend.Frontend) {
	for _, key := range f.keys(c, fr) {
		if f.taken[key] == p.name {
			delete(f.taken, key)
			continue
		}
		f.releaseServer(p, f.servers[key])
		for _, e := range elementsFor(c.Before, key, fr.Restricted) {
			f.releaseElement(p, e)
		}
	}
}

// release withdraws what a port had, unless the port as it is now, or another port, has taken it over.
func (f *family) release(old *port) {
	for s := range old.servers {
		f.releaseServer(old, s)
	}
	for e := range old.elements {
		f.releaseElement(old, e)
	}
}

func (f *family) releaseServer(old *port, s *server) {
	delete(old.servers, s)
	if s != nil && f.owner[s] == old {
		s.wanted = false
		delete(f.owner, s)
		f.dirty[s] = true
		if slices.Contains(f.config.nodePortIPs, s.key.Addr) {
			f.freed = append(f.freed, s.key)
		}
	}
}

func (f *family) releaseElement(old *port, e element) {
	delete(old.elements, e)
	if f.elementOwner[e] == old {
		delete(f.elementOwner, e)
		f.filter.unset(e)
	}
}

// remove withdraws everything of a port.
func (f *family) remove(name model.PortName) {
	old := f.ports[name]
	if old == nil {
		return
	}
	f.forgetTaken(old)
	delete(f.ports, name)
	f.release(old)
	f.releaseMarks(name, old, &port{})
}

// releaseMarks withdraws the marks that a port no longer has, and their chains.
func (f *family) releaseMarks(name model.PortName, old, next *port) {
	for chain := range old.chains {
		if !next.chains[chain] {
			f.filter.removeChain(chain)
		}
	}
	bits := func(m marks) uint32 { return (m.pod | m.node) &^ f.config.mark }
	if m := bits(old.marks); m != bits(next.marks) && f.markOwners[m] == name {
		delete(f.markOwners, m)
	}
}

// forgetTaken forgets where a port is not served because of another program's virtual server.
func (f *family) forgetTaken(p *port) {
	for _, key := range p.taken {
		if f.taken[key] == p.name {
			delete(f.taken, key)
		}
	}
}
