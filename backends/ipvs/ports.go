package ipvs

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ports are the service ports of a family, as wanted. They say what is wanted of virtual servers and of the packet
// filter, and ask the kernel nothing. A virtual server that is wanted has one owner, which is one of the ports.
type ports struct {
	options *Options
	sticky  string // scheduler of virtual servers by mark with session affinity
	config  *config

	servers *servers
	filter  *filter

	byName   map[model.PortName]*port
	marked   map[uint32]bool         // marks of ports
	unmarked map[model.PortName]bool // ports that need marks when none was left
	foreign  map[uint32]bool         // marks of virtual servers of other programs
	uses     map[string]int          // how many ports use a chain that goes with its last port
	lists    rules.SourceLists       // of the present wave
	// freed are virtual servers at addresses that serve node ports, which have lost their owner in the present wave.
	freed []dp.ServerKey
}

// port is a service port.
type port struct {
	name    model.PortName
	servers map[*server]bool // that it owns
	mark    uint32           // that its marks are made of, 0 for none
	marks   marks
	sources rules.SourcesID // of its restricted frontends, if any
	chains  map[string]bool // those whose uses are counted
}

func newPorts(o *Options, s *servers, filter *filter) *ports {
	return &ports{options: o, servers: s, filter: filter, byName: map[model.PortName]*port{}, marked: map[uint32]bool{},
		unmarked: map[model.PortName]bool{}, foreign: map[uint32]bool{}, uses: map[string]int{}, lists: rules.SourceLists{}}
}

// reset forgets all ports.
func (p *ports) reset(c *config) {
	p.config = c
	for _, s := range p.servers.byKey {
		s.owner, s.elements = nil, nil
		p.servers.dirty[s] = true
	}
	clear(p.byName)
	clear(p.marked)
	clear(p.unmarked)
	clear(p.uses)
	p.freed = nil
}

// update takes in the changes of a wave.
func (p *ports) update(c *frontend.Changes) {
	for pc := range c.Ports() {
		p.change(pc)
	}
	// Node ports are served at addresses and ports that services have given up.
	for _, key := range p.freed {
		if pc := c.Owner(frontend.Key{Port: key.Port, Protocol: key.Protocol}); pc != nil {
			p.add(pc)
		}
	}
	p.freed = nil
	clear(p.lists)
}

// change takes in the changes of a service port.
func (p *ports) change(c *frontend.PortChange) {
	if c.After == nil {
		p.release(p.byName[c.Before.Name], &port{})
		delete(p.byName, c.Before.Name)
		delete(p.unmarked, c.Before.Name)
		return
	}
	own := p.byName[c.After.Name]
	if own == nil || c.Before == nil || changesEverywhere(c.Before, c.After) {
		p.add(c)
		return
	}
	for fr := range c.FrontendChanges() {
		if fr.Before != nil {
			p.withdraw(c, own, fr.Before)
		}
		if fr.After != nil {
			p.serveFrontend(c, own, fr.After)
		}
	}
	changed := map[netip.AddrPort]bool{}
	for _, set := range allSets() {
		for _, e := range c.EndpointChanges(set) {
			if e.Before != nil {
				changed[e.Before.Target] = true
			}
			if e.After != nil {
				changed[e.After.Target] = true
			}
		}
	}
	if len(changed) == 0 {
		return
	}
	for s := range own.servers {
		for target := range changed {
			s.assign(target, roleOf(c, s.set, target))
		}
		p.servers.dirty[s] = true
	}
}

// changesEverywhere reports whether a change of a port concerns all of its frontends.
func changesEverywhere(b, a *frontend.Port) bool {
	return b.Routes != a.Routes || b.AffinityTimeout != a.AffinityTimeout ||
		!slices.Equal(b.SourceRanges, a.SourceRanges) ||
		(b.Count(frontend.LoadBalancerIP) == 0) != (a.Count(frontend.LoadBalancerIP) == 0) ||
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

// add adds a service port as if it were new. It takes over what the port had before.
func (p *ports) add(c *frontend.PortChange) {
	old := p.byName[c.After.Name]
	own := &port{name: c.After.Name, servers: map[*server]bool{}, chains: map[string]bool{}}
	p.byName[own.name] = own
	p.setMarks(c.After, own, old)
	for fr := range c.Frontends() {
		p.serveFrontend(c, own, &fr)
	}
	r := c.After.RoutesOf(frontend.ExternalIP)
	if m := own.marks.pod; m != 0 {
		p.serve(c, own, p.keyOf(m), r.FromPod.Endpoints, nil)
	}
	if m := own.marks.node; m != 0 && m != own.marks.pod {
		p.serve(c, own, p.keyOf(m), r.FromNode.Endpoints, nil)
	}
	p.release(old, own)
}

// serveFrontend adds a frontend to a port.
func (p *ports) serveFrontend(c *frontend.PortChange, own *port, fr *frontend.Frontend) {
	chain := p.dispatchChain(c.After, own, fr.Kind, fr.Restricted)
	set := c.After.RoutesOf(fr.Kind).Other.Endpoints
	for _, key := range p.keys(c, fr) {
		vip := rules.Key(key.Addr, key.Protocol, key.Port)
		p.serve(c, own, key, set, []element{{serviceIPs, vip, chain}})
	}
}

// keys returns the virtual servers of a frontend: for a node port, one at each of the node's addresses that serve node
// ports, unless a service has exactly that address and port.
func (p *ports) keys(c *frontend.PortChange, fr *frontend.Frontend) []dp.ServerKey {
	key := dp.ServerKey{Family: p.config.family, Addr: fr.Addr, Port: fr.Port, Protocol: fr.Protocol}
	if !fr.IsNodePort() {
		return []dp.ServerKey{key}
	}
	list := make([]dp.ServerKey, 0, len(p.config.nodePortIPs))
	for _, a := range p.config.nodePortIPs {
		if c.Owner(frontend.Key{Addr: a, Port: fr.Port, Protocol: fr.Protocol}) == nil {
			key.Addr = a
			list = append(list, key)
		}
	}
	return list
}

// serve makes a virtual server, to which elements send packets, balance over a backend set of a port.
func (p *ports) serve(c *frontend.PortChange, own *port, key dp.ServerKey, set model.EndpointSets, e []element) {
	s := p.servers.at(key)
	if s.owner != nil {
		delete(s.owner.servers, s)
	}
	own.servers[s] = true
	s.owner, s.set, s.protocol = own, set, c.After.Name.Protocol
	s.excluded = key.Mark != 0 || p.options.excludes(key.Addr)
	s.want = p.spec(c.After, key)
	p.filter.unset(s.elements...)
	p.filter.set(e...)
	s.elements = e
	for target := range s.destinations {
		s.assign(target, roleOf(c, set, target))
	}
	for _, ep := range c.Endpoints(set) {
		s.assign(ep.Target, active)
	}
}

// byClient is the scheduler that chooses the endpoint by the client's address.
const byClient = "sh"

// spec is the virtual server of a port with a key.
func (p *ports) spec(c *frontend.Port, key dp.ServerKey) dp.Server {
	s := dp.Server{ServerKey: key, Scheduler: p.options.Scheduler, Flags: dp.Owned}
	switch {
	case c.AffinityTimeout > 0 && key.Mark != 0:
		// The kernel sends persistent clients of a virtual server by mark to the port that they connected to, which is
		// not the endpoint's. So the scheduler keeps these clients at their endpoint by their address.
		if s.Scheduler = p.sticky; s.Scheduler == byClient {
			s.Flags |= dp.SourceHashFallback
		}
	case c.AffinityTimeout > 0:
		s.Flags |= dp.Persistent
		s.Persistence = c.AffinityTimeout.Truncate(1e9)
	}
	if s.Scheduler == "mh" {
		s.Flags |= dp.MaglevPort
	}
	return s
}

// withdraw takes a frontend from a port.
func (p *ports) withdraw(c *frontend.PortChange, own *port, fr *frontend.Frontend) {
	for _, key := range p.keys(c, fr) {
		if s := p.servers.byKey[key]; s != nil && s.owner == own {
			p.releaseServer(s)
		}
	}
}

// release withdraws what a port had, unless the port as it is now, or another port, has taken it over or uses it.
func (p *ports) release(old, now *port) {
	if old == nil {
		return
	}
	for s := range old.servers {
		p.releaseServer(s)
	}
	if old.mark != now.mark {
		delete(p.marked, old.mark)
	}
	for chain := range old.chains {
		if p.uses[chain]--; p.uses[chain] == 0 {
			delete(p.uses, chain)
			p.filter.removeChain(chain)
		}
	}
}

func (p *ports) releaseServer(s *server) {
	delete(s.owner.servers, s)
	p.filter.unset(s.elements...)
	s.owner, s.elements = nil, nil
	p.servers.dirty[s] = true
	if slices.Contains(p.config.nodePortIPs, s.key.Addr) {
		p.freed = append(p.freed, s.key)
	}
}

// keyOf returns the virtual server for packets with a mark.
func (p *ports) keyOf(mark uint32) dp.ServerKey {
	return dp.ServerKey{Family: p.config.family, Mark: mark}
}
