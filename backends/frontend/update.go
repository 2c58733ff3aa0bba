package frontend

import (
	"context"
	"fmt"
	"math"
	"slices"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// update processes the calls since the last Sync. Until then the table stays as of that Sync, for repairs that run
// meanwhile.
func (t *Table) update(ctx context.Context) {
	if t.node != nil && !t.node.Equal(t.current) {
		t.current = t.node
		for _, f := range t.families {
			f.setNode(t.current, t.services)
		}
	}
	if addresses := t.options.NodePortAddresses; addresses != nil {
		for _, f := range t.families {
			f.owners.setAddresses(addresses(t.current, f.family))
		}
	}
	var s *service // of the last call: those of a service follow each other
	for i := range t.calls {
		c := &t.calls[i]
		name := c.name()
		if s == nil || s.name != name {
			if s = t.services[name]; s == nil {
				s = &service{name: name, age: math.MaxInt64} // so that it comes last, like most new ones
				t.services[name] = s
				t.join(s)
			}
		}
		switch {
		case c.endpoint != nil:
			t.updateEndpoint(ctx, s, t.calls[i:])
		case c.gone:
			t.deleteService(s)
		default:
			t.setService(ctx, s, c.service)
		}
		if s.isEmpty() {
			t.forget(s)
			s = nil
		}
	}
	if clear(t.calls); cap(t.calls) > 1024 {
		t.calls = nil
	} else {
		t.calls = t.calls[:0]
	}
	if len(t.budget.due) > 0 {
		t.admit(func(s *service, f *family, decided []*port) { t.updateDecided(ctx, s, f, decided) })
	}
	for _, f := range t.families {
		f.settle(func(p Problem) { t.report(ctx, p) })
	}
	t.findHealthPorts(ctx)
	t.announceRest(ctx)
	t.reporter.tell(t.services)
}

func (c *call) name() model.ServiceName {
	if c.endpoint != nil {
		return c.endpoint.Port.Service
	}
	return c.service.Name
}

// updateEndpoint processes the first of the remaining calls.
func (t *Table) updateEndpoint(ctx context.Context, s *service, left []call) {
	ep, gone := left[0].endpoint, left[0].gone
	i := slices.IndexFunc(t.families, func(f *family) bool { return f.family == ep.Family() })
	if i < 0 {
		if !gone && ep.Family() == 0 {
			t.found(ctx, s, Problem{Port: ep.Port, Reason: InvalidEndpoint, Message: "an endpoint has no address"})
		}
		return
	}
	id := portID{t.families[i], ep.Port.Port, ep.Port.Protocol}
	if gone {
		if p := s.port(id); p != nil {
			p.deleteEndpoint(ep.Target)
		}
		return
	}
	if !isValid(ep) {
		t.found(ctx, s, Problem{Family: ep.Family(), Port: ep.Port, Reason: InvalidEndpoint,
			Message: fmt.Sprintf("endpoint %v has no port number", ep.Target.Addr())})
	}
	p := s.makePort(id)
	if p.endpoints.all == nil {
		p.endpoints.makeRoom(countOf(ep.Port, left))
	}
	p.setEndpoint(ep)
}

// countOf returns how many calls, from the first on, are for endpoints of a port.
func countOf(port model.PortName, list []call) (n int) {
	for n < len(list) && list[n].endpoint != nil && list[n].endpoint.Port == port {
		n++
	}
	return n
}

func (t *Table) setService(ctx context.Context, s *service, next *model.Service) {
	before := s.object
	if before.Equal(next) {
		return
	}
	if before != nil && !isSame(before, next) {
		t.deleteService(s) // a new service of that name, which keeps nothing of the old one
		before = nil
	}
	s.object = next
	t.setAge(s)
	t.countHealthCheck(before, next)
	same := sameFrontends(before, next)
	t.round++
	for _, f := range t.families {
		t.setPorts(ctx, s, f, same)
	}
	t.forgetProblems(s)
}

// setPorts updates the ports of a service in one family.
func (t *Table) setPorts(ctx context.Context, s *service, f *family, same bool) {
	next, shared := s.object, t.sharedBy(s, f)
	left := t.budget.Service.Frontends
	t.setRanges(s, f, len(shared.ranges))
	for i := range next.Ports {
		sp := &next.Ports[i]
		name := next.PortName(*sp)
		if sp.Routes.At(f.family).Sets() == 0 {
			continue
		}
		if sp.Port == 0 || sp.Protocol == 0 {
			t.found(ctx, s, Problem{Family: f.family, Port: name, Reason: InvalidPort,
				Message: "it has no port number or protocol"})
			continue
		}
		p := s.makePort(portID{f, sp.Name, sp.Protocol})
		if p.wantedIn == uint32(t.round) {
			t.found(ctx, s, Problem{Family: f.family, Port: name, Reason: DuplicatePort,
				Message: "the service has two ports of that name and protocol"})
			continue
		}
		p.wantedIn = uint32(t.round)
		asked, unchanged := p.asked, same && p.current != nil && *p.spec == *sp
		p.spec = sp
		wanted := shared.wanted(p)
		if !unchanged || p.omitted > 0 || len(asked) > left {
			asked = shared.frontends(p, &wanted, left)
		}
		left -= len(asked)
		before := p.cost()
		wasAsked := p.asks
		if p.asks, p.demand = true, int32(len(asked)); !wasAsked {
			p.touch()
		}
		p.is = 0
		if shared.affinity > 0 && t.budget.affinity {
			p.is |= sticky
		}
		if s.ranges[f.index] > 0 && len(wanted.SourceRanges) > 0 {
			p.is |= restricted
		}
		p.charge(before)
		shared.update(ctx, p, &wanted, asked)
	}
	for _, p := range s.ports.all {
		if p.family == f && p.wantedIn != uint32(t.round) {
			s.leave(p)
			p.remove()
		}
	}
}

// deleteService withdraws everything that a service asks for. Its endpoints stay until they are deleted, too.
func (t *Table) deleteService(s *service) {
	t.countHealthCheck(s.object, nil)
	if len(s.problems) > 0 {
		t.reporter.mark(s.name)
	}
	s.object, s.problems = nil, nil
	t.round++
	for _, p := range s.ports.all {
		s.leave(p)
		p.remove()
	}
	for _, f := range t.families {
		t.setRanges(s, f, 0)
	}
	t.decideAgain(s.tenant)
}

// setRanges notes how many source ranges a service has: only those of load-balancer IPs count.
func (t *Table) setRanges(s *service, f *family, n int) {
	if n > 0 && !hasVIP(f.family, s.object) {
		n = 0
	}
	if before := int(s.ranges[f.index]); n != before {
		s.ranges[f.index] = int32(n)
		s.touch(f)
		s.charge(f, Budget{SourceRanges: n - before})
	}
}

func (t *Table) countHealthCheck(before, after *model.Service) {
	t.healthPorts.set(before, false)
	t.healthPorts.set(after, true)
	if before != nil && before.HealthCheck != nil &&
		(after == nil || after.HealthCheck == nil || after.HealthCheck.NodePort != before.HealthCheck.NodePort) {
		for _, f := range t.families {
			t.forgetHealthPort(t.services[before.Name], f)
		}
	}
	for _, f := range t.families {
		if before != nil && before.HealthCheck != nil {
			f.healthChecks.remove(HealthCheck{before.HealthCheck.NodePort, before.Name})
		}
		if after != nil && after.HealthCheck != nil {
			f.healthChecks.add(HealthCheck{after.HealthCheck.NodePort, after.Name})
		}
	}
}

// found reports a problem of a service unless it was there before.
func (t *Table) found(ctx context.Context, s *service, p Problem) {
	if s.problems == nil {
		s.problems = map[Problem]told{}
	}
	before, known := s.problems[p.key()]
	if !known {
		t.announce(ctx, p)
	}
	if before.message != p.Message {
		t.reporter.mark(s.name)
	}
	s.problems[p.key()] = told{t.round, p.Message}
}

// announced identifies a kind of problem that the ports of one service may have by the thousand.
type announced struct {
	service model.ServiceName
	family  model.Family
	reason  Reason
}

// announceAtMost is how many new problems of one kind of a service are reported one by one in an update.
const announceAtMost = 8

// more are the problems beyond that.
type more struct {
	n    int
	last Problem
}

// announce reports a new problem, or counts it.
func (t *Table) announce(ctx context.Context, p Problem) {
	kind := announced{p.Port.Service, p.Family, p.Reason}
	m := t.announced[kind]
	if m.n++; m.n <= announceAtMost {
		t.report(ctx, p)
	}
	m.last = p
	t.announced[kind] = m
}

// announceRest reports, for each service, the problems that announce has only counted.
func (t *Table) announceRest(ctx context.Context) {
	for _, m := range t.announced {
		if m.n <= announceAtMost {
			continue
		}
		if rest := m.n - announceAtMost - 1; rest > 0 {
			m.last.Message += fmt.Sprintf("; the same holds for %d more of its ports", rest)
		}
		t.report(ctx, m.last)
	}
	if len(t.announced) > 0 {
		t.announced = map[announced]more{} // not clear, whose cost depends on what the map once held
	}
}

func (t *Table) report(ctx context.Context, p Problem) {
	klog.FromContext(ctx).Info("Part of a service port is not served", "port", p.Port, "family", p.Family,
		"reason", p.Reason, "message", p.Message)
	if t.options.OnProblem != nil {
		t.options.OnProblem(ctx, p)
	}
}
