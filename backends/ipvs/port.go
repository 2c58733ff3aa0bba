package ipvs

import (
	"hash/fnv"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/backends/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// port is a service port: its virtual servers, and what the packet filter has of it.
type port struct {
	servers  map[*server]model.EndpointSets // and the set that each balances over
	elements map[element]string
	marks    marks
}

// marks are the packet marks of a port's virtual servers for sources that do not get what others get, 0 for none (S27).
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

// marksOf returns the marks that a port needs: one for each kind of source whose set is not that of all others. Those
// whose source is to be rewritten have the masquerade bit, too, because IPVS looks at the whole mark.
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

// spec is the virtual server of a port with a key.
func (f *family) spec(p *frontend.Port, key dp.ServerKey) dp.Server {
	s := dp.Server{ServerKey: key, Scheduler: f.options.Scheduler, Flags: dp.Owned}
	switch {
	case p.AffinityTimeout > 0 && key.Mark != 0:
		// The kernel sends persistent clients of a virtual server by mark to the port that they asked for, which is
		// not the endpoint's. So those are kept at their endpoint by their address.
		s.Scheduler, s.Flags = "sh", s.Flags|dp.SourceHashFallback
	case p.AffinityTimeout > 0:
		s.Flags |= dp.Persistent
		s.Persistence = p.AffinityTimeout.Truncate(1e9)
	}
	if s.Scheduler == "mh" {
		s.Flags |= dp.MaglevPort
	}
	return s
}

// address is where a frontend can be reached.
type address struct {
	netip.Addr
	port uint16
	bind bool
}

// addresses returns where a frontend can be reached: a node port on each of the node's addresses that serve some.
func (f *family) addresses(fr *frontend.Frontend) []address {
	if !fr.IsNodePort() {
		return []address{{fr.Addr, fr.Port, !f.hostAddrs[fr.Addr]}}
	}
	var list []address
	for _, a := range f.config.nodePortIPs {
		list = append(list, address{a, fr.Port, false})
	}
	return list
}

// change follows a changed service port.
func (f *family) change(c *frontend.PortChange) {
	if c.After == nil {
		f.remove(c.Before.Name)
		return
	}
	old := f.ports[c.After.Name]
	if old == nil || c.Before == nil || f.hasChanged(c) {
		f.describe(c)
		old = f.ports[c.After.Name]
	}
	for s, set := range old.servers {
		f.followEndpoints(c, s, set)
	}
}

// hasChanged tells whether a port changed in anything but its endpoints.
func (f *family) hasChanged(c *frontend.PortChange) bool {
	b, a := c.Before, c.After
	if b.Routes != a.Routes || b.AffinityTimeout != a.AffinityTimeout || len(b.SourceRanges) != len(a.SourceRanges) {
		return true
	}
	for i := range b.SourceRanges {
		if b.SourceRanges[i] != a.SourceRanges[i] {
			return true
		}
	}
	for _, set := range []model.EndpointSets{model.ClusterSet, model.LocalSet} {
		if (b.Size(set) == 0) != (a.Size(set) == 0) {
			return true
		}
	}
	for range c.FrontendChanges() {
		return true
	}
	return false
}

// followEndpoints gives endpoints that came or went their roles in a virtual server.
func (f *family) followEndpoints(c *frontend.PortChange, s *server, set model.EndpointSets) {
	changes := map[netip.AddrPort]role{}
	for _, e := range c.EndpointChanges(set) {
		if e.Before != nil {
			changes[e.Before.Target] = max(changes[e.Before.Target], gone)
		}
		if e.After != nil {
			changes[e.After.Target] = active
		}
	}
	for _, other := range []model.EndpointSets{model.ClusterSet, model.LocalSet, frontend.Draining} {
		if other == set {
			continue
		}
		// What is in another set, or draining, serves the connections that it has.
		for _, e := range c.EndpointChanges(other) {
			if e.Before != nil {
				if _, ok := changes[e.Before.Target]; !ok && s.destinations[e.Before.Target] != nil &&
					s.destinations[e.Before.Target].role == serving {
					changes[e.Before.Target] = gone
				}
			}
		}
	}
	if len(changes) == 0 {
		return
	}
	for _, other := range []model.EndpointSets{model.ClusterSet, model.LocalSet, frontend.Draining} {
		if other == set {
			continue
		}
		for _, ep := range c.Endpoints(other) {
			if r, ok := changes[ep.Target]; ok && r == gone {
				changes[ep.Target] = serving
			}
		}
	}
	for target, r := range changes {
		s.assign(target, r)
	}
	f.dirty[s] = true
}

// assignAll gives all endpoints of a port their roles in a virtual server.
func (f *family) assignAll(c *frontend.PortChange, s *server, set model.EndpointSets) {
	roles := map[netip.AddrPort]role{}
	for _, other := range []model.EndpointSets{model.ClusterSet, model.LocalSet, frontend.Draining} {
		for _, ep := range c.Endpoints(other) {
			if other == set {
				roles[ep.Target] = active
			} else {
				roles[ep.Target] = max(roles[ep.Target], serving)
			}
		}
	}
	for target := range s.destinations {
		s.assign(target, roles[target])
	}
	for target, r := range roles {
		s.assign(target, r)
	}
	f.dirty[s] = true
}

// describe follows everything of a service port but single endpoints.
func (f *family) describe(c *frontend.PortChange) {
	p := c.After
	old := f.ports[p.Name]
	next := &port{servers: map[*server]model.EndpointSets{}, elements: map[element]string{}, marks: f.marksOf(p)}
	f.ports[p.Name] = next
	serve := func(key dp.ServerKey, bind bool, set model.EndpointSets) {
		s := f.serverFor(key, p.Name.Protocol)
		s.want, s.wanted, s.bind = f.spec(p, key), true, bind
		next.servers[s] = set
		f.owner[s] = next
		f.dirty[s] = true
		if old == nil || old.servers[s] != set {
			f.assignAll(c, s, set)
		}
	}
	external := false
	for fr := range c.Frontends() {
		external = external || fr.Kind != frontend.ClusterIP
		chain := f.dispatchChain(p, next.marks, fr.Kind, fr.Restricted)
		for _, a := range f.addresses(&fr) {
			key := dp.ServerKey{Family: f.key, Addr: a.Addr, Port: a.port, Protocol: p.Name.Protocol}
			if _, there := f.foreign[key]; there && f.options.excludes(a.Addr) {
				f.taken[key] = p.Name
				continue
			}
			serve(key, a.bind, p.RoutesOf(fr.Kind).Other.Endpoints)
			vip := dispatchKey(a.Addr, a.port, p.Name.Protocol)
			next.elements[element{servicesMap, vip}] = chain
			if fr.Restricted {
				for _, k := range sourceKeys(vip, p.SourceRanges) {
					next.elements[element{sourcesSet, k}] = ""
				}
			}
		}
	}
	if external {
		r := p.RoutesOf(frontend.ExternalIP)
		if m := next.marks.pod; m != 0 {
			serve(dp.ServerKey{Family: f.key, Mark: m}, false, r.FromPod.Endpoints)
		}
		if m := next.marks.node; m != 0 && m != next.marks.pod {
			serve(dp.ServerKey{Family: f.key, Mark: m}, false, r.FromNode.Endpoints)
		}
	}
	for e, chain := range next.elements {
		f.elementOwner[e] = next
		f.filter.set(e, chain)
	}
	if old != nil {
		f.release(old)
	}
}

// release takes back what a port had and nobody has taken over: neither the port as it is now nor another one.
func (f *family) release(old *port) {
	for s := range old.servers {
		if f.owner[s] == old {
			s.wanted = false
			delete(f.owner, s)
			f.dirty[s] = true
		}
	}
	for e := range old.elements {
		if f.elementOwner[e] == old {
			delete(f.elementOwner, e)
			f.filter.unset(e)
		}
	}
}

// remove takes back everything of a port.
func (f *family) remove(name model.PortName) {
	old := f.ports[name]
	if old == nil {
		return
	}
	delete(f.ports, name)
	f.release(old)
	for _, m := range []uint32{old.marks.pod, old.marks.node} {
		if m &^= f.config.mark; f.markOwners[m] == name {
			delete(f.markOwners, m)
		}
	}
}
