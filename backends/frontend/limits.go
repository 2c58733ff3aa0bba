package frontend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Limits bound what one service, and all services of one namespace, may cost the dataplane in each family, so that
// their authors cannot exhaust a node that serves everybody. They are far beyond what services need. All backends count
// alike, and count what is asked for, whoever owns it.
//
// What exceeds a limit is not served; other namespaces, and what is within the limits, are not affected. It is a
// [Problem] of its service port, and Sync returns it as a [*sink.PortError] until the service keeps to the limits: then
// it is served at once. Which ports exceed the limits of a namespace depends only on its current services: the oldest
// come first, then the first by name, and the ports of a service by name. A port that does not fit is not served at
// all, and what comes after it may still fit. Sticky endpoints and ports are limited only where [Options].Sticky is
// given, in the same order: what exceeds these limits is served without session affinity, which is a Problem but no
// error.
type Limits struct {
	// Service is what one service may ask for. Default for what is 0: 131,072 frontends, 16,384 source ranges, 24,576
	// restricted ports, 1,048,576 destinations; for sticky endpoints and ports see [Options].Sticky.
	Service Budget
	// Namespace is what the services of one namespace may ask for together. Default for what is 0: 524,288 frontends,
	// 262,144 source ranges, 32,768 restricted ports, 4,194,304 destinations; for sticky endpoints and ports see
	// [Options].Sticky.
	Namespace Budget
}

// Budget is an amount of what services ask for in one family.
type Budget struct {
	// Frontends are the ways to reach service ports. Further ones of a service are not served: see [TooManyFrontends].
	Frontends int
	// SourceRanges are those of each service with load-balancer IPs. A service that exceeds its own limit has its
	// load-balancer IPs not served, because with some of the ranges they would be closed to some of its clients, and
	// with none open to everybody. One that needs more than its namespace has left is not served at all: see
	// [TooManySourceRanges].
	SourceRanges int
	// RestrictedPorts are the service ports whose load-balancer IPs source ranges restrict. One that exceeds the limit is
	// not served at all: see [TooManySourceRanges]. In packages nft and ipvs it may need two chains that no other port
	// has, and the kernel walks all chains at every change.
	RestrictedPorts int
	// Destinations are the endpoints of each service port times its frontends, or once if it has none: see
	// [TooManyDestinations]. A node port is one frontend, also in package ipvs, where the kernel has its endpoints once
	// for each address that serves it.
	Destinations int
	// StickyEndpoints are the endpoints of service ports with session affinity. Only the nft and iptables backends limit
	// them: see [TooManyStickyEndpoints].
	StickyEndpoints int
	// StickyPorts are the service ports with session affinity and endpoints. Without a default of the backend, as in
	// package iptables, there may be as many as StickyEndpoints: see [TooManyStickyPorts].
	StickyPorts int
}

// StickyLimits are what one service, and all services of one namespace, may have with session affinity in each family.
type StickyLimits struct {
	Service   int // endpoints of one service
	Namespace int // endpoints of all services of one namespace together
	// ServicePorts and NamespacePorts are the same for service ports that have endpoints. 0: as many as endpoints.
	ServicePorts, NamespacePorts int
}

// complete returns the limits with their defaults.
func (l Limits) complete(sticky StickyLimits) Limits {
	return Limits{Service: l.Service.or(Budget{1 << 17, 1 << 14, 3 << 13, 1 << 20, sticky.Service, sticky.ServicePorts}),
		Namespace: l.Namespace.or(Budget{1 << 19, 1 << 18, 1 << 15, 1 << 22, sticky.Namespace, sticky.NamespacePorts})}
}

func (b Budget) or(o Budget) Budget {
	sticky := cmp.Or(b.StickyEndpoints, o.StickyEndpoints)
	return Budget{cmp.Or(b.Frontends, o.Frontends), cmp.Or(b.SourceRanges, o.SourceRanges),
		cmp.Or(b.RestrictedPorts, o.RestrictedPorts), cmp.Or(b.Destinations, o.Destinations), sticky,
		cmp.Or(b.StickyPorts, o.StickyPorts, sticky)}
}

// Validate returns an error if a limit is negative.
func (l Limits) Validate() error {
	for _, b := range []Budget{l.Service, l.Namespace} {
		if b.least() < 0 {
			return errors.New("limits: must not be negative")
		}
	}
	return nil
}

func (b *Budget) add(o Budget) {
	b.Frontends += o.Frontends
	b.SourceRanges += o.SourceRanges
	b.RestrictedPorts += o.RestrictedPorts
	b.Destinations += o.Destinations
	b.StickyEndpoints += o.StickyEndpoints
	b.StickyPorts += o.StickyPorts
}

func (b Budget) minus(o Budget) Budget {
	return Budget{b.Frontends - o.Frontends, b.SourceRanges - o.SourceRanges, b.RestrictedPorts - o.RestrictedPorts,
		b.Destinations - o.Destinations, b.StickyEndpoints - o.StickyEndpoints, b.StickyPorts - o.StickyPorts}
}

// exceeds reports whether any amount of a budget is greater than that of another.
func (b Budget) exceeds(o Budget) bool { return o.minus(b).least() < 0 }

// least returns the smallest amount of a budget.
func (b Budget) least() int {
	return min(b.Frontends, b.SourceRanges, b.RestrictedPorts, b.Destinations, b.StickyEndpoints, b.StickyPorts)
}

// excess is the limit that keeps a service port from being served, or from having session affinity.
type excess uint8

const (
	noExcess          excess = iota
	ofOwnDestinations        // of the service; others are of the namespace
	ofFrontends
	ofDestinations
	ofRanges
	ofOwnRestricted // of the service
	ofRestricted
	ofOwnSticky // of the service; with this and the next ones the port is served
	ofSticky
	ofOwnStickyPorts // of the service
	ofStickyPorts
	numExcesses
)

// refuses reports whether the port is not served.
func (e excess) refuses() bool { return e != noExcess && !e.deniesAffinity() }

// deniesAffinity reports whether the port is served without session affinity.
func (e excess) deniesAffinity() bool { return e >= ofOwnSticky }

// problem returns the Problem to report.
func (e excess) problem(p *port, l *Limits) Problem {
	reason, service, namespace := TooManyDestinations, l.Service.Destinations, l.Namespace.Destinations
	outcome, name := "it is not served: ", "endpoints times frontends"
	switch e {
	case ofFrontends:
		reason, namespace, name = TooManyFrontends, l.Namespace.Frontends, "frontends"
	case ofRanges:
		reason, namespace, name = TooManySourceRanges, l.Namespace.SourceRanges, "source ranges"
	case ofOwnRestricted, ofRestricted:
		reason, service, namespace = TooManySourceRanges, l.Service.RestrictedPorts, l.Namespace.RestrictedPorts
		name = "ports with source ranges"
	case ofOwnSticky, ofSticky:
		reason, service, namespace = TooManyStickyEndpoints, l.Service.StickyEndpoints, l.Namespace.StickyEndpoints
		outcome, name = "it is served without session affinity: ", "endpoints with it"
	case ofOwnStickyPorts, ofStickyPorts:
		reason, service, namespace = TooManyStickyPorts, l.Service.StickyPorts, l.Namespace.StickyPorts
		outcome, name = "it is served without session affinity: ", "ports with it"
	}
	limit := fmt.Sprintf("the services of a namespace may have %d %s together, and older ones have them", namespace, name)
	switch e {
	case ofOwnDestinations, ofOwnRestricted, ofOwnSticky, ofOwnStickyPorts:
		limit = fmt.Sprintf("a service may have %d %s", service, name)
	}
	return Problem{Family: p.family.family, Port: p.name, Reason: reason, Message: outcome + limit}
}

// cost is what a port asks for, served or not; its source ranges count for its service.
func (p *port) cost() Budget {
	if !p.asks {
		return Budget{}
	}
	b := Budget{Frontends: int(p.demand), Destinations: max(1, int(p.demand)) * len(p.endpoints.all)}
	if p.is&restricted != 0 {
		b.RestrictedPorts = 1
	}
	if p.is&sticky != 0 {
		b.StickyEndpoints = len(p.endpoints.all)
		b.StickyPorts = min(1, b.StickyEndpoints)
	}
	return b
}

// excesses has the problems of a family's ports that exceed limits, and the errors that Sync returns for those that are
// not served.
type excesses struct {
	of     map[*port][]Problem
	errors portErrors
}

// note notes what a port exceeds, if anything.
func (e *excesses) note(p *port, found []Problem) {
	if slices.Equal(e.of[p], found) {
		return
	}
	for _, problem := range e.of[p] {
		if !slices.ContainsFunc(found, func(other Problem) bool { return other.Reason == problem.Reason }) {
			delete(p.service.problems, problem.key()) // it is reported again
			p.family.owners.reporter.mark(p.service.name)
		}
	}
	if len(found) == 0 {
		delete(e.of, p)
	} else {
		if e.of == nil {
			e.of = map[*port][]Problem{}
		}
		e.of[p] = found
	}
	e.renew(p)
}

// renew makes the error of a port.
func (e *excesses) renew(p *port) {
	var causes []error
	for _, problem := range e.of[p] {
		if problem.Reason != TooManyStickyEndpoints && problem.Reason != TooManyStickyPorts {
			causes = append(causes, problem)
		}
	}
	if len(causes) == 0 {
		e.errors.set(p, nil)
		return
	}
	e.errors.set(p, &sink.PortError{Port: p.name, Family: p.family.family, Err: errors.Join(causes...),
		ServesExternal: hasExternal(p.asked) && !p.family.unreached[p]})
}
