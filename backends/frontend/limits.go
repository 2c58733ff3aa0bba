package frontend

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Limits bound what one service, and all services of one namespace, may cost the dataplane in each family, so that
// their authors cannot exhaust a node that serves everybody. They are far beyond what services need. All backends count
// alike, and count what is asked for, whoever owns it.
//
// What exceeds a limit is not served; other namespaces, and what is within the limits, are not affected. It is a
// [Problem] of its service port, and Sync returns it as a [*sink.PortError] until the service keeps to the limits: then
// it is served at once. Who exceeds the limits of a namespace depends on nothing but its services as they are: the
// oldest come first, then the first by name, and of a service its ports by name. A port that does not fit is not served
// at all, and what comes after it may still fit.
type Limits struct {
	// Service is what one service may ask for. Default for what is 0: 131,072 frontends, 16,384 source ranges, 1,048,576
	// destinations.
	Service Budget
	// Namespace is what the services of one namespace may ask for together. Default for what is 0: 524,288 frontends,
	// 262,144 source ranges, 4,194,304 destinations.
	Namespace Budget
}

// Budget is an amount of what services ask for in one family.
type Budget struct {
	// Frontends are the ways to reach service ports. Further ones of a service are not served: see [TooManyFrontends].
	Frontends int
	// SourceRanges are those of each service with load-balancer IPs. The load-balancer IPs of a service with more are
	// not served, rather than to everybody or to some of its clients, and a service with more than are left in its
	// namespace is not served at all: see [TooManySourceRanges].
	SourceRanges int
	// Destinations are the endpoints of each service port times its frontends, or once if it has none: see
	// [TooManyDestinations].
	Destinations int
}

// complete returns the limits with their defaults.
func (l Limits) complete() Limits {
	return Limits{Service: l.Service.or(Budget{1 << 17, 1 << 14, 1 << 20}),
		Namespace: l.Namespace.or(Budget{1 << 19, 1 << 18, 1 << 22})}
}

func (b Budget) or(o Budget) Budget {
	return Budget{cmp.Or(b.Frontends, o.Frontends), cmp.Or(b.SourceRanges, o.SourceRanges),
		cmp.Or(b.Destinations, o.Destinations)}
}

// Validate returns an error if a limit is negative.
func (l Limits) Validate() error {
	for _, b := range []Budget{l.Service, l.Namespace} {
		if min(b.Frontends, b.SourceRanges, b.Destinations) < 0 {
			return errors.New("limits: must not be negative")
		}
	}
	return nil
}

func (b *Budget) add(o Budget) {
	b.Frontends += o.Frontends
	b.SourceRanges += o.SourceRanges
	b.Destinations += o.Destinations
}

func (b Budget) minus(o Budget) Budget {
	return Budget{b.Frontends - o.Frontends, b.SourceRanges - o.SourceRanges, b.Destinations - o.Destinations}
}

// exceeds reports whether a budget is more than another one in anything.
func (b Budget) exceeds(o Budget) bool {
	left := o.minus(b)
	return min(left.Frontends, left.SourceRanges, left.Destinations) < 0
}

// excess is the limit that keeps a service port from being served.
type excess uint8

const (
	noExcess excess = iota
	ofFrontends
	ofRanges
	ofDestinations    // of the namespace, like those before
	ofOwnDestinations // of the service
)

// problem returns the Problem to report.
func (e excess) problem(p *port, l *Limits) Problem {
	var reason Reason
	var n int
	what := "the services of a namespace may have %d %s together, and older ones have them"
	switch e {
	case ofFrontends:
		reason, n = TooManyFrontends, l.Namespace.Frontends
	case ofRanges:
		reason, n = TooManySourceRanges, l.Namespace.SourceRanges
	case ofDestinations:
		reason, n = TooManyDestinations, l.Namespace.Destinations
	default:
		reason, n = TooManyDestinations, l.Service.Destinations
		what = "a service may have %d %s"
	}
	name := map[Reason]string{TooManyFrontends: "frontends", TooManySourceRanges: "source ranges",
		TooManyDestinations: "endpoints times frontends"}[reason]
	return Problem{Family: p.family.family, Port: p.name, Reason: reason, Message: fmt.Sprintf("it is not served: "+what, n, name)}
}

// cost is what a port asks for, served or not; its source ranges count for its service.
func (p *port) cost() Budget {
	if !p.asks {
		return Budget{}
	}
	return Budget{Frontends: int(p.demand), Destinations: max(1, int(p.demand)) * len(p.endpoints.all)}
}

// charge notes that the cost of a port is another one than before.
func (p *port) charge(before Budget) {
	if now := p.cost(); now != before {
		p.service.charge(p.family, now.minus(before))
	}
}

// charge notes that a service costs more, or less.
func (s *service) charge(f *family, more Budget) {
	i := f.index
	s.destinations[i] += more.Destinations
	u := &s.tenant.of[i]
	u.total.add(more)
	if l := f.limits; u.limited > 0 || u.total.exceeds(l.Namespace) || s.destinations[i] > l.Service.Destinations {
		l.due[s.tenant] = true
	}
}

// tenant is the services of a namespace, and what they ask for.
type tenant struct {
	namespace string
	services  map[*service]bool
	sorted    []*service // by age and name; nil if it is not known
	of        [2]struct {
		total   Budget
		limited int // ports that are not served
	}
}

// budget is what families know of the limits.
type budget struct {
	Limits
	// due are the tenants that may exceed them, or did.
	due map[*tenant]bool
}

// join makes a service one of its tenant's.
func (t *Table) join(s *service) {
	n := t.tenants[s.name.Namespace]
	if n == nil {
		n = &tenant{namespace: s.name.Namespace, services: map[*service]bool{}}
		t.tenants[n.namespace] = n
	}
	s.tenant = n
	n.services[s], n.sorted = true, nil
}

// forget removes a service of which nothing is known any more.
func (t *Table) forget(s *service) {
	delete(t.services, s.name)
	n := s.tenant
	if delete(n.services, s); len(n.services) == 0 {
		delete(t.tenants, n.namespace)
	}
	n.sorted = nil
}

// aged notes that the age of a service may have changed.
func (t *Table) aged(s *service) {
	n := s.tenant
	n.sorted = nil
	for i := range n.of {
		if n.of[i].limited > 0 {
			t.budget.due[n] = true
		}
	}
}

// admit decides which ports are served where limits are, or were, exceeded.
func (t *Table) admit(update func(*service, *family)) {
	for _, n := range slices.SortedFunc(maps.Keys(t.budget.due), func(a, b *tenant) int {
		return cmp.Compare(a.namespace, b.namespace)
	}) {
		if n.sorted == nil {
			n.sorted = slices.SortedFunc(maps.Keys(n.services), func(a, b *service) int {
				return cmp.Or(cmp.Compare(a.age, b.age), a.name.Compare(b.name))
			})
		}
		for _, f := range t.families {
			left, limited := t.budget.Namespace, 0
			for _, s := range n.sorted {
				if s.object != nil && s.admit(f, &left, &limited) {
					update(s, f)
				}
			}
			n.of[f.index].limited = limited
		}
	}
	clear(t.budget.due)
}

// admit decides which ports of a service are served with what is left of its namespace's budget, and reports whether
// any of that is new.
func (s *service) admit(f *family, left *Budget, limited *int) (isNew bool) {
	own, ranges := f.limits.Service.Destinations, s.ranges[f.index]
	tooMany, any := ranges > left.SourceRanges, false
	ports := make([]*port, 0, len(s.ports.all))
	for _, p := range s.ports.all {
		if p.family == f && p.asks {
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, func(a, b *port) int { return a.name.Compare(b.name) })
	for _, p := range ports {
		c, why := p.cost(), noExcess
		switch {
		case tooMany:
			why = ofRanges
		case c.Destinations > own:
			why = ofOwnDestinations
		case c.Frontends > left.Frontends:
			why = ofFrontends
		case c.Destinations > left.Destinations:
			why = ofDestinations
		}
		if isNew = isNew || p.excess != why; why == noExcess {
			any = true
			own -= c.Destinations
			*left = left.minus(c)
		} else {
			*limited++
		}
		p.excess = why
	}
	if any {
		left.SourceRanges -= ranges
	}
	return isNew
}

// excesses are the problems of a family's ports that exceed limits, and the error that Sync returns of them.
type excesses struct {
	of    map[*port][]Problem
	isNew bool
	err   error
}

// note notes what a port exceeds, if anything.
func (e *excesses) note(p *port, found []Problem) {
	if slices.Equal(e.of[p], found) {
		return
	}
	for _, problem := range e.of[p] {
		if !slices.ContainsFunc(found, func(other Problem) bool { return other.Reason == problem.Reason }) {
			delete(p.service.problems, problem.key()) // it is told again
			p.family.owners.reporter.mark(p.service.name)
		}
	}
	if e.isNew = true; len(found) == 0 {
		delete(e.of, p)
		return
	}
	if e.of == nil {
		e.of = map[*port][]Problem{}
	}
	e.of[p] = found
}

// error returns an error for each port.
func (e *excesses) error() error {
	if !e.isNew {
		return e.err
	}
	var errs []error
	for _, p := range slices.SortedFunc(maps.Keys(e.of), func(a, b *port) int { return a.name.Compare(b.name) }) {
		var causes []error
		for _, problem := range e.of[p] {
			causes = append(causes, problem)
		}
		errs = append(errs, &sink.PortError{Port: p.name, Family: p.family.family, Err: errors.Join(causes...)})
	}
	e.err, e.isNew = errors.Join(errs...), false
	return e.err
}
