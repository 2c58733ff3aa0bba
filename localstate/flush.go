package localstate

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Receiver is told what changed. A sink.Sink is one.
type Receiver interface {
	SetService(*model.Service)
	DeleteService(model.ServiceName)
	SetEndpoint(*model.Endpoint)
	DeleteEndpoint(model.EndpointKey)
}

// NodeReceiver is a Receiver that wants to know the node as well. A sink.NodeSetter is one.
type NodeReceiver interface {
	SetNode(*model.Node)
}

// Changes says what a Flush handed over.
type Changes struct {
	// Services and Endpoints count the calls for services and for endpoints.
	Services, Endpoints int
	// Node: the node was handed over.
	Node bool
	// IPv4 and IPv6 tell which families are concerned.
	IPv4, IPv6 bool
	// TriggersIPv4 and TriggersIPv6 are when somebody changed what led to these changes, in no order: the start of
	// the network programming latency, whose end is the end of the Sync that puts the changes in force (S19). Changes
	// from before the State was made are not in it, nor are those that altered nothing here.
	TriggersIPv4, TriggersIPv6 []time.Time
}

// Any tells whether anything was handed over.
func (c Changes) Any() bool { return c.Services > 0 || c.Endpoints > 0 || c.Node }

// Concerns tells whether a family is concerned.
func (c Changes) Concerns(f model.Family) bool {
	return f == model.IPv4 && c.IPv4 || f == model.IPv6 && c.IPv6
}

// Triggers returns the trigger times of a family.
func (c Changes) Triggers(f model.Family) []time.Time {
	if f == model.IPv6 {
		return c.TriggersIPv6
	}
	return c.TriggersIPv4
}

func (c *Changes) touch(f model.Family) {
	c.IPv4 = c.IPv4 || f == model.IPv4
	c.IPv6 = c.IPv6 || f == model.IPv6
}

func (c *Changes) touchService(svc *model.Service) {
	for _, ip := range svc.ClusterIPs {
		c.touch(model.FamilyOf(ip))
	}
}

// add adds the changes of one service, with the times of those that concern a changed family.
func (c *Changes) add(own Changes, triggers []trigger) {
	c.Services += own.Services
	c.Endpoints += own.Endpoints
	c.IPv4 = c.IPv4 || own.IPv4
	c.IPv6 = c.IPv6 || own.IPv6
	for _, t := range triggers {
		if t.family == model.IPv4 && own.IPv4 {
			c.TriggersIPv4 = append(c.TriggersIPv4, t.at)
		}
		if t.family == model.IPv6 && own.IPv6 {
			c.TriggersIPv6 = append(c.TriggersIPv6, t.at)
		}
	}
}

// NoLocalEndpoints counts the service ports whose traffic policy is Local and that have usable endpoints, but none on
// this node, by policy and family.
type NoLocalEndpoints struct {
	InternalIPv4, InternalIPv6, ExternalIPv4, ExternalIPv6 int
}

// noLocalPorts is NoLocalEndpoints of one service, by family.
type noLocalPorts struct{ internal, external [2]uint16 }

func (n *NoLocalEndpoints) add(o noLocalPorts, sign int) {
	n.InternalIPv4 += sign * int(o.internal[0])
	n.InternalIPv6 += sign * int(o.internal[1])
	n.ExternalIPv4 += sign * int(o.external[0])
	n.ExternalIPv6 += sign * int(o.external[1])
}

// NoLocalEndpoints returns the counts as of the last Flush.
func (s *State) NoLocalEndpoints() NoLocalEndpoints { return s.noLocal }

// waveBuffers are reused from one service to the next.
type waveBuffers struct {
	candidates []candidate
	order      []int // ports of the service by name
	routes     [][2]model.Routes
	deletes    []model.EndpointKey
	sets       []*model.Endpoint
	port       []*model.Endpoint
	ports      [][]*model.Endpoint
	addrs      []netip.Addr
	slicePorts []slicePort
}

// Flush hands over what differs from what was last handed over, in the order that package sink lays down, and counts it as
// handed over: a receiver whose Sync then fails keeps it.
func (s *State) Flush(r Receiver) Changes {
	var changes Changes
	s.flushNode(r, &changes)

	slices.SortFunc(s.dirty, func(a, b *service) int { return a.name.Compare(b.name) })
	for _, svc := range s.dirty {
		if svc.intake == nil && svc.handed != nil {
			changes.add(s.flushDeleted(svc, r), s.triggers[svc])
		}
	}
	for _, svc := range s.dirty {
		if svc.intake != nil {
			changes.add(s.flushService(svc, r), s.triggers[svc])
		}
		delete(s.triggers, svc) // one by one: to clear a map costs what it once held
		svc.serviceChanged, svc.endpointsChanged = false, false
		s.forgetIfEmpty(svc)
	}
	clear(s.dirty) // free what is gone
	clear(s.wave.candidates)
	s.dirty = s.dirty[:0]
	s.pending = Pending{}
	return changes
}

// flushDeleted takes back all that was handed over of a service.
func (s *State) flushDeleted(svc *service, r Receiver) Changes {
	changes := Changes{Services: 1}
	changes.touchService(svc.handed)
	for _, list := range svc.endpoints {
		for _, e := range list {
			r.DeleteEndpoint(e.Key())
			changes.Endpoints++
		}
	}
	r.DeleteService(svc.name)
	s.noLocal.add(svc.noLocal, -1)
	svc.handed, svc.endpoints, svc.noLocal = nil, nil, noLocalPorts{}
	return changes
}

// flushService works a service out anew and hands over the difference.
func (s *State) flushService(svc *service, r Receiver) Changes {
	w, in := &s.wave, svc.intake
	ports := in.model.Ports
	w.order = w.order[:0]
	for i := range ports {
		w.order = append(w.order, i)
	}
	slices.SortFunc(w.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(ports[a].Name, ports[b].Name), cmp.Compare(ports[a].Protocol, ports[b].Protocol))
	})
	w.routes = append(w.routes[:0], make([][2]model.Routes, len(ports))...)
	w.deletes, w.sets, w.ports = w.deletes[:0], w.sets[:0], w.ports[:0]
	var noLocal noLocalPorts

	handed := svc.endpoints
	for _, i := range w.order {
		name := in.model.PortName(ports[i])
		for len(handed) > 0 && handed[0][0].Port.Compare(name) < 0 { // of a port that is gone
			w.deleteAll(handed[0])
			handed = handed[1:]
		}
		var before []*model.Endpoint
		if len(handed) > 0 && handed[0][0].Port == name {
			before, handed = handed[0], handed[1:]
		}
		if after := s.portEndpoints(svc, i, name, before, &noLocal); len(after) > 0 {
			w.ports = append(w.ports, after)
		}
	}
	for _, list := range handed {
		w.deleteAll(list)
	}

	changes := Changes{Endpoints: len(w.deletes) + len(w.sets)}
	for _, key := range w.deletes {
		r.DeleteEndpoint(key)
		changes.touch(model.FamilyOf(key.Target.Addr()))
	}
	complete := in.complete(w.routes, s.localEndpoints(svc), s.node.model.IP)
	if !complete.Equal(svc.handed) {
		r.SetService(complete)
		changes.Services++
		changes.touchService(complete)
		if svc.handed != nil {
			changes.touchService(svc.handed)
		}
		svc.handed = complete
	}
	in.model = svc.handed // share what is equal
	for _, e := range w.sets {
		r.SetEndpoint(e)
		changes.touch(e.Family())
	}

	if len(w.ports) == len(svc.endpoints) {
		copy(svc.endpoints, w.ports)
	} else {
		svc.endpoints = slices.Clone(w.ports)
	}
	clear(w.ports)
	clear(w.sets)
	s.noLocal.add(svc.noLocal, -1)
	s.noLocal.add(noLocal, 1)
	svc.noLocal = noLocal
	return changes
}

func (w *waveBuffers) deleteAll(list []*model.Endpoint) {
	for _, e := range list {
		w.deletes = append(w.deletes, e.Key())
	}
}

// portEndpoints works out the routes and endpoints of the i-th port of a service, adds the difference to what was handed
// over to the buffers, and returns the new list: before itself, if there is no difference.
func (s *State) portEndpoints(svc *service, i int, name model.PortName, before []*model.Endpoint, noLocal *noLocalPorts) []*model.Endpoint {
	w, in := &s.wave, svc.intake
	port := in.model.Ports[i]
	deletes, sets, rest := len(w.deletes), len(w.sets), before
	w.port = w.port[:0]
	for _, f := range s.families {
		if !in.model.ClusterIP(f).IsValid() {
			continue
		}
		w.candidates = collect(w.candidates, svc, name.Port, name.Protocol, f)
		selected := selectFrom(w.candidates, s.opts.NodeName, s.node.model.Zone)
		routes := s.routes(in, port, f, &selected)
		w.routes[i][familyIndex(f)] = routes
		noLocal.count(f, routes, &selected)
		inUse := routes.Sets()
		for c := range w.candidates {
			c := &w.candidates[c]
			set := selected.sets(c, inUse)
			if !c.handedOver(set, name.Protocol) {
				continue
			}
			for len(rest) > 0 && model.CompareTargets(rest[0].Target, c.target) < 0 {
				w.deletes = append(w.deletes, rest[0].Key())
				rest = rest[1:]
			}
			value := c.model(name, set)
			if len(rest) > 0 && rest[0].Target == c.target {
				old := rest[0]
				rest = rest[1:]
				if *old == value {
					w.port = append(w.port, old)
					continue
				}
			}
			e := new(model.Endpoint)
			*e = value
			w.port = append(w.port, e)
			w.sets = append(w.sets, e)
		}
	}
	w.deleteAll(rest)
	if len(w.deletes) == deletes && len(w.sets) == sets {
		return before
	}
	return slices.Clone(w.port)
}

// routes asks the decision table (S25 to S28) for one port and family.
func (s *State) routes(in *serviceIntake, port model.ServicePort, f model.Family, selected *selection) model.Routes {
	return model.NewRoutes(model.RoutePolicy{
		Internal:          in.model.InternalTrafficPolicy,
		External:          in.model.ExternalTrafficPolicy,
		ClusterIP:         true,
		ExternalAddresses: port.NodePort != 0 || in.external(f),
		NoEndpoints:       !selected.any(),
		DetectsLocalPods:  s.node.model.LocalPods.Detects(f),
		MasqueradeAll:     s.opts.MasqueradeAll,
	})
}

// count notes a port with a Local policy that has no endpoint on this node, but some elsewhere.
func (n *noLocalPorts) count(f model.Family, routes model.Routes, selected *selection) {
	if !selected.any() || selected.localReady > 0 || selected.localDraining > 0 {
		return
	}
	if routes.ClusterIP.Endpoints == model.LocalSet {
		n.internal[familyIndex(f)]++
	}
	if routes.External.Endpoints == model.LocalSet {
		n.external[familyIndex(f)]++
	}
}

// localEndpoints counts what a health check reports (S38): the distinct addresses of local ready endpoints over all
// ports of the slices, whether the service has these ports or not.
func (s *State) localEndpoints(svc *service) [2]int {
	var counts [2]int
	if svc.intake.model.HealthCheck == nil {
		return counts
	}
	w := &s.wave
	for _, f := range s.families {
		if !svc.intake.model.ClusterIP(f).IsValid() {
			continue
		}
		w.slicePorts, w.addrs = w.slicePorts[:0], w.addrs[:0]
		for _, slice := range svc.slices {
			for _, p := range slice.ports {
				p.number = 0
				if slice.family == f && !slices.Contains(w.slicePorts, p) {
					w.slicePorts = append(w.slicePorts, p)
				}
			}
		}
		for _, p := range w.slicePorts {
			w.candidates = collect(w.candidates, svc, p.name, p.protocol, f)
			for _, c := range w.candidates {
				if !c.loses && c.endpoint.flags.has(flagReady|flagLocal) {
					w.addrs = append(w.addrs, c.target.Addr())
				}
			}
		}
		w.addrs = sortedSet(w.addrs, netip.Addr.Compare)
		counts[familyIndex(f)] = len(w.addrs)
	}
	return counts
}
