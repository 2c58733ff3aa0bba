package localstate

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"unique"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// NodePart is the part of a service's state that only one node has, in addition to what all nodes of its [Class] have:
// its local endpoints, the endpoints whose topology hints name it, and the count of its health check. It is immutable.
// The methods apply it to the state of the class; a nil NodePart is empty.
type NodePart struct {
	// Endpoints are sorted by key. Each replaces the class's endpoint with the same key, or is added.
	Endpoints []*model.Endpoint
	// Unselected are the ports whose sets contain only endpoints in Endpoints, because hints name this node (S22). They
	// are sorted by PortFamily.Compare.
	Unselected []PortFamily
	// LocalEndpoints are the counts of the health check (S38).
	LocalEndpoints model.PerFamily[int]
}

// PortFamily is one port of a service in one family.
type PortFamily struct {
	// Port is the name of the port, "" for one without a name, and Protocol its protocol: see [model.PortName].
	Port     string
	Protocol model.Protocol
	// Family is one of the service's families.
	Family model.Family
}

// Compare orders ports by name, protocol and family.
func (p PortFamily) Compare(o PortFamily) int {
	return cmp.Or(cmp.Compare(p.Port, o.Port), cmp.Compare(p.Protocol, o.Protocol), cmp.Compare(p.Family, o.Family))
}

// Equal reports whether two parts have the same content.
func (p *NodePart) Equal(o *NodePart) bool {
	if p == o || p == nil || o == nil {
		return p == o
	}
	return p.LocalEndpoints == o.LocalEndpoints && slices.Equal(p.Unselected, o.Unselected) &&
		slices.EqualFunc(p.Endpoints, o.Endpoints, (*model.Endpoint).Equal)
}

// Service returns a service of the class as it is for the node: with the count of the node's endpoints, and with the
// VIPs as allowed sources if the node's address is allowed (S26). If there is no difference, it returns the service
// itself.
func (p *NodePart) Service(svc *model.Service, node *model.Node) *model.Service {
	if svc == nil || svc.HealthCheck == nil && len(svc.LoadBalancerSourceRanges) == 0 {
		return svc // true of nearly all services
	}
	own := *svc
	changed := false
	if h := svc.HealthCheck; h != nil {
		var local model.PerFamily[int]
		if p != nil {
			local = p.LocalEndpoints
		}
		if check := *h; check.LocalEndpoints != local {
			check.LocalEndpoints = local
			own.HealthCheck, changed = &check, true
		}
	}
	if len(svc.LoadBalancerSourceRanges) > 0 {
		ranges := rangesWithVIPs(svc.LoadBalancerSourceRanges, svc.LoadBalancerIPs, node.IP)
		if !slices.Equal(ranges, svc.LoadBalancerSourceRanges) {
			own.LoadBalancerSourceRanges, changed = ranges, true
		}
	}
	if !changed {
		return svc
	}
	return &own
}

// Endpoint returns the endpoint with a key as it is for the node, or nil if the node has none. shared is the class's
// endpoint, or nil.
func (p *NodePart) Endpoint(c Class, key model.EndpointKey, shared *model.Endpoint) *model.Endpoint {
	if p == nil {
		return shared
	}
	at, found := slices.BinarySearchFunc(p.Endpoints, key,
		func(e *model.Endpoint, key model.EndpointKey) int { return e.Key().Compare(key) })
	switch {
	case found:
		return p.Endpoints[at]
	case shared == nil || !p.unselected(PortFamily{key.Port.Port, key.Port.Protocol, shared.Family()}):
		return shared
	case !c.keeps(shared):
		return nil
	case shared.Sets == 0:
		return shared
	}
	own := *shared
	own.Sets = 0
	return &own
}

func (p *NodePart) unselected(port PortFamily) bool {
	_, found := slices.BinarySearchFunc(p.Unselected, port, PortFamily.Compare)
	return found
}

// nodePlaces has the candidates that belong to one node, of a port in one family.
type nodePlaces struct {
	local, hinted []int
	anyReady      bool
}

// NodeParts returns the nodes' parts of a service, by node name, according to the currently known objects. It leaves
// out nodes for which keep returns false. s must come from [State.ForClass]. The cost is one pass over the endpoints of
// the service, however many nodes there are.
func (s *State) NodeParts(name model.ServiceName, keep func(node string) bool) map[string]*NodePart {
	svc := s.services[name]
	if svc == nil || svc.intake == nil {
		return nil
	}
	refused := s.limits.refused(svc)
	parts := partsOf{keep: keep, parts: map[string]*NodePart{}}
	for _, f := range s.families {
		if !svc.intake.families.Has(f) {
			continue
		}
		var all entries
		all.addAll(svc, f)
		if svc.intake.fields.HealthCheck != nil && !s.limits.refusesAll(svc) {
			parts.countLocal(&all, f)
		}
		for i := range svc.intake.fields.Ports {
			if refused != nil && refused[i] {
				continue
			}
			p := s.familyPort(svc, &svc.intake.fields.Ports[i], f)
			candidates := all.candidates(nil, all.forPort(p.name.Port, p.name.Protocol))
			var n counts
			p.count(&n, candidates, 1)
			_, shared := p.decide(&n)
			parts.add(&p, candidates, &n, shared)
		}
	}
	parts.sort()
	return parts.parts
}

// partsOf collects the parts of one service, for the nodes that keep selects.
type partsOf struct {
	keep  func(node string) bool
	parts map[string]*NodePart
}

func (o *partsOf) part(node string) *NodePart {
	if o.parts[node] == nil {
		o.parts[node] = &NodePart{}
	}
	return o.parts[node]
}

func (o *partsOf) sort() {
	for _, p := range o.parts {
		slices.SortFunc(p.Endpoints, func(a, b *model.Endpoint) int { return a.Key().Compare(b.Key()) })
		slices.SortFunc(p.Unselected, PortFamily.Compare)
	}
}

// countLocal counts the addresses at which the health check of each node finds an endpoint (S38).
func (o *partsOf) countLocal(all *entries, f model.Family) {
	for same := range all.byAddr() {
		nodes := map[string]struct{}{}
		for c := range all.healthy(same) {
			nodes[c.place().node] = struct{}{}
		}
		for node := range nodes {
			if node != "" && o.keep(node) {
				*o.part(node).LocalEndpoints.At(f)++
			}
		}
	}
}

// ServicesOn returns the names of the services that have endpoints on any of the given nodes, or hints that name one of
// them, in no particular order. It looks at all endpoints of the cluster.
func (s *State) ServicesOn(nodes func(node string) bool) []model.ServiceName {
	known := map[unique.Handle[place]]bool{}
	on := func(handle unique.Handle[place]) bool {
		is, ok := known[handle]
		if !ok {
			p := handle.Value()
			is = p.node != "" && nodes(p.node) || slices.ContainsFunc(splitHints(p.nodeHints), nodes)
			known[handle] = is
		}
		return is
	}
	var names []model.ServiceName
	for name, svc := range s.services {
		if slices.ContainsFunc(svc.slices, func(in *sliceIntake) bool { return slices.ContainsFunc(in.places, on) }) {
			names = append(names, name)
		}
	}
	return names
}

// add adds the nodes' parts of one port in one family. candidates are all candidates at the addresses of the selected
// nodes; n has the counts of the whole port, and shared the rules of the class.
func (o *partsOf) add(p *familyPort, candidates []candidate, n *counts, shared rules) {
	nodes := map[string]*nodePlaces{}
	places := func(node string) *nodePlaces {
		if nodes[node] == nil {
			nodes[node] = &nodePlaces{}
		}
		return nodes[node]
	}
	for i := range candidates {
		c := &candidates[i]
		if c.loses {
			continue
		}
		ready := c.flags.has(flagReady)
		if node := c.place().node; node != "" && o.keep(node) {
			at := places(node)
			at.local = append(at.local, i)
			at.anyReady = at.anyReady || ready
		}
		if ready && n.allHaveNodeHints() && !shared.headless && !p.opts.NoNodeHints {
			for _, node := range slices.Compact(slices.Sorted(slices.Values(splitHints(c.place().nodeHints)))) {
				if o.keep(node) {
					at := places(node)
					at.hinted = append(at.hinted, i)
				}
			}
		}
	}
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		at, r := nodes[node], shared
		r.nodeName, r.anyLocalReady = node, at.anyReady
		if len(at.hinted) > 0 {
			r.topology = topologyNode
			own := o.part(node)
			own.Unselected = append(own.Unselected, PortFamily{p.name.Port, p.name.Protocol, p.family})
		}
		own := append(slices.Clone(at.local), at.hinted...)
		slices.Sort(own)
		for _, i := range slices.Compact(own) {
			c := candidates[i]
			if c.place().node == node {
				c.flags |= flagLocal
			}
			if sets := r.sets(&c); c.handedOver(&p.opts, sets, p.name.Protocol) {
				value := c.model(p.name, sets)
				to := o.part(node)
				to.Endpoints = append(to.Endpoints, &value)
			}
		}
	}
}

// rangesWithVIPs implements S26: a request from the node to a VIP that is also an address of the host has the VIP as
// its source, so the VIP must be allowed if the node is.
func rangesWithVIPs(ranges []netip.Prefix, vips []netip.Addr, nodeIP func(model.Family) netip.Addr) []netip.Prefix {
	all := slices.Clip(ranges) // append does not write to its memory
	for _, f := range model.Families() {
		ip := nodeIP(f)
		if !ip.IsValid() || !slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			continue
		}
		for _, vip := range vips {
			if model.FamilyOf(vip) == f {
				all = append(all, netip.PrefixFrom(vip, vip.BitLen()))
			}
		}
	}
	if len(all) == len(ranges) {
		return ranges
	}
	return rangeSet(all)
}
