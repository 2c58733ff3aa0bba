package ipvs

import (
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/rules"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ports are the service ports of a family, as wanted. They say what is wanted of virtual servers and which chains the
// packet filter needs, and ask the kernel nothing. A virtual server that is wanted has one owner, which is one of the
// ports.
type ports struct {
	options *Options
	sticky  string // scheduler of virtual servers by mark with session affinity
	config  *config

	servers *servers
	filter  *filter

	byName  map[model.PortName]*port
	touched map[model.PortName]bool // in the present wave
	marked  map[uint32]bool         // marks of ports
	foreign map[uint32]bool         // marks of virtual servers of other programs
	lists   rules.SourceLists       // of the present wave
	// freed are virtual servers at addresses that serve node ports, which have lost their owner in the present wave.
	freed []dp.ServerKey
}

// port is a service port.
type port struct {
	name              model.PortName
	affinity          time.Duration
	clusterIP, extern path                          // of its frontends
	mark              uint32                        // that its marks are made of, 0 for none
	marks             map[uint32]model.EndpointSets // which set serves packets with a mark (S27)
	err               error                         // why it has no marks, if it needs some
	chains            []string                      // that it uses
	servers           map[*server]bool              // that it owns
}

// path is the way of packets to frontends of a kind.
type path struct {
	chain      string
	restricted string // the chain for restricted frontends
	set        model.EndpointSets
}

func newPorts(o *Options, s *servers, filter *filter) *ports {
	return &ports{options: o, servers: s, filter: filter, byName: map[model.PortName]*port{},
		touched: map[model.PortName]bool{}, marked: map[uint32]bool{}, foreign: map[uint32]bool{},
		lists: rules.SourceLists{}}
}

// reset forgets all ports.
func (p *ports) reset(c *config) {
	p.config = c
	for _, s := range p.servers.byKey {
		s.owner, s.shown = nil, ""
		p.servers.dirty[s] = true
	}
	clear(p.byName)
	clear(p.marked)
	p.freed = nil
}

// update records the changes of a wave.
func (p *ports) update(c *frontend.Changes) {
	var again []*frontend.PortChange
	for pc := range c.Ports() {
		if p.put(pc); c.Retry() && pc.After != nil && pc.Refused() != nil {
			again = append(again, pc)
		}
	}
	// Node ports are served at addresses and ports that services have given up.
	for _, key := range p.freed {
		if pc := c.Owner(frontend.Key{Port: key.Port, Protocol: key.Protocol}); pc != nil {
			p.put(pc)
		}
	}
	p.freed = nil
	for _, pc := range again {
		p.retry(c, p.byName[pc.After.Name])
	}
	clear(p.lists)
}

// retry makes the next commit try again what was refused of a port. Otherwise that is tried only when it changes.
func (p *ports) retry(c *frontend.Changes, own *port) {
	if own.err != nil && p.hasMark() {
		p.put(c.Port(own.name))
		own = p.byName[own.name]
	}
	for s := range own.servers {
		for target := range s.refused {
			s.changed[target] = true
		}
		p.servers.dirty[s] = true
	}
}

// avoid gives other marks to the ports of virtual servers that were just tried and by whose mark another program has
// one: that is never taken over. It reports whether there are any.
func (p *ports) avoid(c *frontend.Changes, tried []*server) bool {
	var names []model.PortName
	for _, s := range tried {
		if s.blocked && s.key.Mark != 0 && s.owner != nil {
			p.foreign[s.key.Mark] = true
			names = append(names, s.owner.name)
		}
	}
	for _, name := range names {
		p.put(c.Port(name))
	}
	return len(names) > 0
}

// put records a service port that is new or has changed, or withdraws one that is gone.
func (p *ports) put(c *frontend.PortChange) {
	if c.After == nil {
		if old := p.byName[c.Before.Name]; old != nil {
			p.release(old, 0)
			delete(p.byName, old.name)
		}
		return
	}
	old := p.byName[c.After.Name]
	own := old
	if old == nil || c.Before == nil || changesEverywhere(c.Before, c.After) {
		c.Before = nil // it is added as a new one, which takes over what it had
		own = p.newPort(c.After, old)
		p.byName[own.name] = own
	}
	p.touched[own.name] = true
	var filled []*server
	for fr := range c.FrontendChanges() {
		if fr.Before != nil {
			for _, key := range p.keys(fr.Before.Key) {
				if s := p.servers.byKey[key]; s != nil && s.owner == own {
					p.releaseServer(s)
				}
			}
		}
		if fr.After != nil {
			for _, key := range p.keys(fr.After.Key) {
				s := p.serve(own, key, own.pathOf(fr.After))
				s.nodePort, s.clusterIP = fr.After.IsNodePort(), fr.After.Kind == frontend.ClusterIP
				filled = append(filled, s)
			}
		}
	}
	if own != old {
		for mark, set := range own.marks {
			filled = append(filled, p.serve(own, dp.ServerKey{Family: p.config.family, Mark: mark}, path{set: set}))
		}
		if old != nil {
			p.release(old, own.mark)
		}
	}
	for _, s := range filled {
		for target := range s.destinations {
			s.assign(target, c.Sets(target))
		}
		for _, ep := range c.Endpoints(s.set) {
			s.assign(ep.Target, s.set)
		}
	}
	if own == old {
		p.changeEndpoints(c, own)
	}
}

// changeEndpoints follows the endpoints that have changed.
func (p *ports) changeEndpoints(c *frontend.PortChange, own *port) {
	changed := map[netip.AddrPort]model.EndpointSets{}
	for _, set := range frontend.BackendSets() {
		for _, e := range c.EndpointChanges(set) {
			if e.Before != nil {
				changed[e.Before.Target] = c.Sets(e.Before.Target)
			}
			if e.After != nil {
				changed[e.After.Target] = c.Sets(e.After.Target)
			}
		}
	}
	if len(changed) == 0 {
		return
	}
	for s := range own.servers {
		for target, sets := range changed {
			s.assign(target, sets)
		}
		p.servers.dirty[s] = true
	}
}

// changesEverywhere reports whether a change of a port concerns all of its frontends.
func changesEverywhere(b, a *frontend.Port) bool {
	sets := frontend.BackendSets()
	return b.Routes != a.Routes || b.AffinityTimeout != a.AffinityTimeout ||
		!slices.Equal(b.SourceRanges, a.SourceRanges) ||
		(b.Count(frontend.LoadBalancerIP) == 0) != (a.Count(frontend.LoadBalancerIP) == 0) ||
		slices.ContainsFunc(sets[:],
			func(set model.EndpointSets) bool { return (b.Size(set) == 0) != (a.Size(set) == 0) })
}

// pathOf returns the way of packets to a frontend.
func (own *port) pathOf(fr *frontend.Frontend) path {
	switch {
	case fr.Kind == frontend.ClusterIP:
		return own.clusterIP
	case fr.Restricted:
		return path{chain: own.extern.restricted, set: own.extern.set}
	}
	return own.extern
}

// keys returns the virtual servers of a frontend: for a node port, one at each of the node's addresses that serve node
// ports, unless a service has exactly that address and port.
func (p *ports) keys(k frontend.Key) (list []dp.ServerKey) {
	key := dp.ServerKey{Family: p.config.family, Addr: k.Addr, Port: k.Port, Protocol: k.Protocol}
	if !k.IsNodePort() {
		return []dp.ServerKey{key}
	}
	for _, key.Addr = range p.config.nodePortIPs {
		if s := p.servers.byKey[key]; s == nil || s.owner == nil || s.nodePort {
			list = append(list, key)
		}
	}
	return list
}

// serve makes a virtual server one of a port.
func (p *ports) serve(own *port, key dp.ServerKey, to path) *server {
	s := p.servers.at(key)
	if s.owner != nil {
		delete(s.owner.servers, s)
	}
	own.servers[s] = true
	s.owner, s.chain, s.set, s.protocol, s.nodePort = own, to.chain, to.set, own.name.Protocol, false
	s.barred = p.config.isBarred(key)
	s.excluded = key.Mark != 0 || p.options.excludes(key.Addr)
	s.want = dp.Server{ServerKey: key, Scheduler: p.options.Scheduler, Flags: dp.Owned}
	switch {
	case own.affinity > 0 && key.Mark != 0:
		// The kernel sends persistent clients of a virtual server by mark to the port that they connected to, which is
		// not the endpoint's. So the scheduler keeps these clients at their endpoint by their address.
		if s.want.Scheduler = p.sticky; s.want.Scheduler == byClient {
			s.want.Flags |= dp.SourceHashFallback
		}
	case own.affinity > 0:
		s.want.Flags |= dp.Persistent
		s.want.Persistence = own.affinity.Truncate(time.Second)
	}
	if s.want.Scheduler == "mh" {
		s.want.Flags |= dp.MaglevPort
	}
	return s
}

// byClient is the scheduler that chooses the endpoint by the client's address.
const byClient = "sh"

// release withdraws what a port had, except what another port, or the port as it is now, has taken over. mark is what
// the marks of the port are made of now.
func (p *ports) release(old *port, mark uint32) {
	for s := range old.servers {
		p.releaseServer(s)
	}
	if old.mark != mark {
		delete(p.marked, old.mark)
	}
	p.filter.release(old.chains)
}

func (p *ports) releaseServer(s *server) {
	delete(s.owner.servers, s)
	s.owner = nil
	p.servers.dirty[s] = true
	if slices.Contains(p.config.nodePortIPs, s.key.Addr) {
		p.freed = append(p.freed, s.key)
	}
}
