package localstate

import (
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Receiver receives what changed. Every sink.Sink is one.
type Receiver interface {
	// Values are immutable and never nil. The order of the calls of a Flush is that of sink.Sink.
	SetService(*model.Service)
	DeleteService(model.ServiceName)
	SetEndpoint(*model.Endpoint)
	DeleteEndpoint(model.EndpointKey)
}

// NodeReceiver is a Receiver that also receives the node. Every sink.Sink that is a sink.NodeSetter is one.
type NodeReceiver interface {
	// SetNode comes before all calls for services, at the first Flush and when the node has changed.
	SetNode(*model.Node)
}

// Changes says what a Flush handed over.
type Changes struct {
	// Services and Endpoints count the calls for services and for endpoints.
	Services, Endpoints int
	// Node: the node was handed over.
	Node bool
	// IPv4 and IPv6 say which families the changes concern.
	IPv4, IPv6 bool
	// TriggersIPv4 and TriggersIPv6 are the times of the cluster changes that led to these changes, in no particular
	// order. At these times the network programming latency starts; it ends with the Sync that applies the changes
	// (S19). Times from before the State was created, and of changes that made no difference here, are not included.
	TriggersIPv4, TriggersIPv6 []time.Time
}

// Any reports whether anything was handed over.
func (c Changes) Any() bool { return c.Services > 0 || c.Endpoints > 0 || c.Node }

// Concerns reports whether a family is concerned.
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

// touchService records that a service changed: in the families of its cluster IPs or, if it has none, in all.
func (c *Changes) touchService(svc *model.Service, families []model.Family) {
	for _, f := range families {
		if len(svc.ClusterIPs) == 0 || svc.ClusterIP(f).IsValid() {
			c.touch(f)
		}
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

// Flush hands over the difference from what was last handed over, in the order that package sink prescribes. It hands
// over each change only once: a receiver whose Sync then fails must remember it.
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
		delete(s.triggers, svc) // one by one: the cost of clear depends on what the map once held
		svc.serviceChanged, svc.endpointsChanged = false, false
		s.forgetIfEmpty(svc)
	}
	clear(s.dirty) // free what is gone
	s.wave.release()
	s.dirty = s.dirty[:0]
	s.pending = Pending{}
	return changes
}

// flushDeleted deletes everything of a service that was handed over.
func (s *State) flushDeleted(svc *service, r Receiver) Changes {
	changes := Changes{Services: 1}
	changes.touchService(svc.handed, s.families)
	for _, list := range svc.endpoints {
		for _, e := range list {
			r.DeleteEndpoint(e.Key())
			changes.Endpoints++
		}
	}
	r.DeleteService(svc.name)
	s.noLocal.add(svc.noLocal, -1)
	svc.handed, svc.endpoints, svc.noLocal, svc.index = nil, nil, noLocalPorts{}, nil
	return changes
}
