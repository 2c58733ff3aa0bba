package localstate

import (
	"cmp"
	"errors"
	"maps"
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
// most a 4,096th of Service, 64 by default, always gets them, and does not count for its namespace: they take some
// 8 KB, and there are quotas for the number of Services.
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

// limiter records the services that ask for more than a few endpoints, and how many a namespace asks for. What exceeds
// no limit takes no decision.
type limiter struct {
	EndpointLimits
	uncounted  int64 // endpoints that a service may ask for without being counted
	namespaces map[string]*countedNamespace
	due        []*countedNamespace // to be decided about
}

// counted is a service that asks for more than a few endpoints.
type counted struct {
	*service
	created int64 // Unix time; the maximum if it is not known
	asked   int64 // endpoints
	limited bool  // not all of its ports get theirs
	ports   int   // if so, how many, first by name
}

// countedNamespace has the counted services of a namespace.
type countedNamespace struct {
	services map[*service]*counted
	asked    int64      // endpoints, by all of them
	sorted   []*counted // the oldest first; nil until a limit is exceeded for the first time
	limited  int        // services that are limited
	isDue    bool
}

func newLimiter(l EndpointLimits) limiter {
	l = l.complete()
	return limiter{EndpointLimits: l, uncounted: int64(l.Service / 4096), namespaces: map[string]*countedNamespace{}}
}

func (c *counted) compare(o *counted) int {
	return cmp.Or(cmp.Compare(c.created, o.created), c.name.Compare(o.name))
}

// of returns the record of a service, nil if it is not counted.
func (l *limiter) of(svc *service) *counted {
	if n := l.namespaces[svc.name.Namespace]; n != nil {
		return n.services[svc]
	}
	return nil
}

// refusesAll reports whether no port of a service gets endpoints.
func (l *limiter) refusesAll(svc *service) bool {
	c := l.of(svc)
	return c != nil && c.limited && c.ports == 0
}

// refused reports for each port of a service, by index, whether it gets no endpoints; nil if all get theirs.
func (l *limiter) refused(svc *service) []bool {
	c := l.of(svc)
	if c == nil || !c.limited {
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
	n := l.namespaces[svc.name.Namespace]
	var c *counted
	if n != nil {
		c = n.services[svc]
	}
	switch {
	case asked <= l.uncounted && c == nil:
		return // true of most services
	case asked <= l.uncounted:
		n.remove(c)
		if len(n.services) == 0 {
			delete(l.namespaces, svc.name.Namespace)
		}
	case c == nil:
		if n == nil {
			n = &countedNamespace{services: map[*service]*counted{}}
			l.namespaces[svc.name.Namespace] = n
		}
		n.add(&counted{service: svc, created: created, asked: asked})
	default:
		if c.created != created {
			n.remove(c)
			c.created = created
			n.add(c)
		}
		n.asked += asked - c.asked
		c.asked = asked
	}
	if !n.isDue && (n.limited > 0 || n.asked > int64(l.Namespace) || asked > int64(l.Service)) {
		n.isDue = true
		l.due = append(l.due, n)
	}
}

func (n *countedNamespace) add(c *counted) {
	n.services[c.service] = c
	n.asked += c.asked
	if n.sorted != nil {
		at, _ := slices.BinarySearchFunc(n.sorted, c, (*counted).compare)
		n.sorted = slices.Insert(n.sorted, at, c)
	}
}

func (n *countedNamespace) remove(c *counted) {
	delete(n.services, c.service)
	n.asked -= c.asked
	if at, found := slices.BinarySearchFunc(n.sorted, c, (*counted).compare); found {
		n.sorted = slices.Delete(n.sorted, at, at+1)
	}
}

// decide calls changed for each service whose number of ports that get endpoints has changed.
func (l *limiter) decide(changed func(*service)) {
	for _, n := range l.due {
		if n.isDue = false; n.sorted == nil {
			n.sorted = slices.SortedFunc(maps.Values(n.services), (*counted).compare)
		}
		n.limited = 0
		left := int64(l.Namespace)
		for _, c := range n.sorted {
			ports, limited := len(c.intake.fields.Ports), false
			if most := min(left, int64(l.Service)); c.asked > most {
				ports, limited = int(most/int64(c.size)), true
			}
			left -= int64(ports) * int64(c.size)
			if limited {
				n.limited++
			}
			if c.limited != limited || limited && c.ports != ports {
				changed(c.service)
			}
			c.limited, c.ports = limited, ports
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
