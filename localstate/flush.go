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

// ReplacedReceiver is a Receiver that also gets the values that its calls replace, so that it does not have to store
// them.
type ReplacedReceiver interface {
	// ReplacedService comes right before a SetService or DeleteService for a service that has been handed over, with the
	// last value.
	ReplacedService(*model.Service)
	// ReplacedEndpoint comes right before a SetEndpoint or DeleteEndpoint for an endpoint that has been handed over, with
	// the last value.
	ReplacedEndpoint(*model.Endpoint)
}

// Changes says what a Flush handed over.
type Changes struct {
	// Services and Endpoints count the calls for services and for endpoints.
	Services, Endpoints int
	// Node: the node was handed over.
	Node bool
	// Families are the IP families that the changes concern.
	Families model.FamilySet
	// Triggers are the times of the cluster changes that caused these changes, in no particular order. The network
	// programming latency is measured from these times to the end of the Sync that applies the changes (S19). Times from
	// before the State was created, and of changes that made no difference here, are not included.
	Triggers model.PerFamily[[]time.Time]
}

// Any reports whether anything was handed over.
func (c Changes) Any() bool { return c.Services > 0 || c.Endpoints > 0 || c.Node }

// touchService records that a service changed: in the families of its cluster IPs or, if it has none, in all.
func (c *Changes) touchService(svc *model.Service, families []model.Family) {
	for _, f := range families {
		if len(svc.ClusterIPs) == 0 || svc.ClusterIP(f).IsValid() {
			c.Families |= f.Set()
		}
	}
}

// add adds the changes of one service, with the trigger times that concern a changed family.
func (c *Changes) add(own Changes, triggers []trigger) {
	c.Services += own.Services
	c.Endpoints += own.Endpoints
	c.Families |= own.Families
	for _, t := range triggers {
		if own.Families.Has(t.family) {
			times := c.Triggers.At(t.family)
			*times = append(*times, t.at)
		}
	}
}

// Flush hands over the difference from what was last handed over, in the order that package sink prescribes. It hands
// over each change only once: a receiver whose Sync then fails must remember it.
func (s *State) Flush(r Receiver) Changes {
	var changes Changes
	s.flushNode(r, &changes)
	if s.wave.replaced, _ = r.(ReplacedReceiver); s.wave.replaced == nil {
		s.wave.replaced = ignoreReplaced{}
	}

	s.limitEndpoints()
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
	}
	s.Discard() // what has been handed over is not pending any more
	s.wave.release()
	return changes
}

// flushDeleted deletes everything of a service that was handed over.
func (s *State) flushDeleted(svc *service, r Receiver) Changes {
	changes := Changes{Services: 1}
	changes.touchService(svc.handed, s.families)
	for _, list := range svc.endpoints {
		for _, e := range list {
			s.wave.replaced.ReplacedEndpoint(e)
			r.DeleteEndpoint(e.Key())
			changes.Endpoints++
		}
	}
	s.wave.replaced.ReplacedService(svc.handed)
	r.DeleteService(svc.name)
	s.noLocal.add(svc.noLocal, -1)
	svc.handed, svc.endpoints, svc.noLocal, svc.index = nil, nil, noLocalPorts{}, nil
	return changes
}

// ignoreReplaced makes a ReplacedReceiver of a Receiver that is not one.
type ignoreReplaced struct{}

func (ignoreReplaced) ReplacedService(*model.Service)   {}
func (ignoreReplaced) ReplacedEndpoint(*model.Endpoint) {}
