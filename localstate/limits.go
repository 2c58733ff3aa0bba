package localstate

import (
	"cmp"
	"errors"
	"slices"
)

// EndpointLimits bound a product that the authors of Services and EndpointSlices control: each port of a service has
// every address of its slices, so a few hundred KB of objects may ask for millions of endpoints, on every node (S60). A
// service asks for the number of addresses in its slices, usable or not, in the families that are served, times its
// number of ports.
//
// A service that asks for more than a limit gets the endpoints of as many of its ports as fit, first by name, and none
// of the others: see TooManyEndpoints of [model.ServicePort]. If the services of a namespace ask for too many, the
// oldest come first, then the first by name. The result depends only on the current objects. A service that asks for at
// most a 64th of Service always gets them, and does not count for its namespace: there are quotas for the number of
// Services.
type EndpointLimits struct {
	// Service is how many a service may ask for. Default, if 0: 262,144, which take 34 MB of a State.
	Service int
	// Namespace is how many the services of a namespace may ask for together. Default, if 0: 1,048,576.
	Namespace int
}

func (l EndpointLimits) complete() EndpointLimits {
	return EndpointLimits{cmp.Or(l.Service, 1<<18), cmp.Or(l.Namespace, 1<<20)}
}

// Validate returns an error if a limit is negative.
func (l EndpointLimits) Validate() error {
	if l.Service < 0 || l.Namespace < 0 {
		return errors.New("endpoint limits: must not be negative")
	}
	return nil
}

// limiter records the services that ask for many endpoints. Others cost nothing.
type limiter struct {
	EndpointLimits
	uncounted  int64 // endpoints that a service may ask for without being counted
	services   map[*service]*counted
	namespaces map[string]*countedNamespace
	due        []*countedNamespace // in which something changed since the last Flush
}

// counted is a service that asks for many endpoints.
type counted struct {
	*service
	created int64 // Unix time; the maximum if it is not known
	asked   int64 // endpoints
	ports   int   // how many of its ports, first by name, get theirs
}

// countedNamespace has the counted services of a namespace.
type countedNamespace struct {
	services []*counted // the oldest first
	isDue    bool
}

func newLimiter(l EndpointLimits) limiter {
	l = l.complete()
	return limiter{EndpointLimits: l, uncounted: int64(l.Service / 64), services: map[*service]*counted{},
		namespaces: map[string]*countedNamespace{}}
}

func (c *counted) compare(o *counted) int {
	return cmp.Or(cmp.Compare(c.created, o.created), c.name.Compare(o.name))
}

// refusesAll reports whether no port of a service gets endpoints.
func (l *limiter) refusesAll(svc *service) bool {
	c := l.services[svc]
	return c != nil && c.ports == 0
}

// refused reports for each port of a service, by index, whether it gets no endpoints; nil if all get theirs.
func (l *limiter) refused(svc *service) []bool {
	c := l.services[svc]
	if c == nil || c.ports >= len(svc.intake.fields.Ports) {
		return nil
	}
	refused := make([]bool, len(svc.intake.fields.Ports))
	for _, i := range svc.intake.portsByName(nil)[c.ports:] {
		refused[i] = true
	}
	return refused
}

// count records how many endpoints a service asks for now.
func (l *limiter) count(svc *service) {
	var asked, created int64
	if svc.intake != nil && svc.intake.families != 0 {
		asked = int64(svc.size) * int64(len(svc.intake.fields.Ports))
		created = svc.intake.fields.Created.Unix()
		if svc.intake.fields.Created.IsZero() {
			created = 1<<63 - 1 // it is not known: the last
		}
	}
	c := l.services[svc]
	if c == nil && asked <= l.uncounted {
		return // true of nearly all services
	}
	n := l.namespaces[svc.name.Namespace]
	if n == nil {
		n = &countedNamespace{}
		l.namespaces[svc.name.Namespace] = n
	}
	if !n.isDue {
		n.isDue = true
		l.due = append(l.due, n)
	}
	if c != nil && (asked <= l.uncounted || created != c.created) {
		n.services = slices.DeleteFunc(n.services, func(o *counted) bool { return o == c })
		delete(l.services, svc)
	}
	if asked <= l.uncounted {
		if len(n.services) == 0 {
			delete(l.namespaces, svc.name.Namespace)
		}
		return
	}
	if l.services[svc] == nil {
		c = &counted{service: svc, created: created}
		l.services[svc] = c
		at, _ := slices.BinarySearchFunc(n.services, c, (*counted).compare)
		n.services = slices.Insert(n.services, at, c)
	}
	c.asked = asked
}

// decide calls changed for each service whose number of ports that get endpoints has changed.
func (l *limiter) decide(changed func(*service)) {
	for _, n := range l.due {
		n.isDue = false
		left := int64(l.Namespace)
		for _, c := range n.services {
			ports := len(c.intake.fields.Ports)
			if most := min(left, int64(l.Service)); c.asked > most {
				ports = int(most / int64(c.size))
			}
			left -= int64(ports) * int64(c.size)
			if c.ports != ports {
				c.ports = ports
				changed(c.service)
			}
		}
	}
	clear(l.due)
	l.due = l.due[:0]
}

// limitEndpoints decides which ports get their endpoints, before any are created.
func (s *State) limitEndpoints() {
	for _, svc := range s.dirty {
		s.limits.count(svc)
	}
	if len(s.limits.due) > 0 {
		s.limits.decide(s.markService)
	}
}
