package frontend

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// update takes over what was described since the last time. Until then the table stays as of the last Sync, for who
// repairs meanwhile.
func (t *Table) update(ctx context.Context) {
	if t.node != nil && !t.node.Equal(t.current) {
		t.current = t.node
		for _, f := range t.families {
			f.setNode(t.current, t.services)
		}
	}
	var s *service // of the last description: those of a service follow each other
	for i := range t.described {
		d := &t.described[i]
		name := d.name()
		if s == nil || s.name != name {
			if s = t.services[name]; s == nil {
				if d.gone {
					continue
				}
				s = &service{name: name}
				t.services[name] = s
			}
		}
		switch {
		case d.endpoint != nil:
			t.updateEndpoint(ctx, s, d.endpoint, d.gone)
		case d.gone:
			if t.deleteService(s); s.removeUnused() {
				delete(t.services, name)
				s = nil
			}
		default:
			t.setService(ctx, s, d.service)
		}
	}
	if clear(t.described); cap(t.described) > 1024 {
		t.described = nil
	} else {
		t.described = t.described[:0]
	}
	for _, f := range t.families {
		f.settle(func(p Problem) { t.report(ctx, p) })
	}
}

func (d *description) name() model.ServiceName {
	if d.endpoint != nil {
		return d.endpoint.Port.Service
	}
	return d.service.Name
}

func (t *Table) updateEndpoint(ctx context.Context, s *service, ep *model.Endpoint, gone bool) {
	id := portID{ep.Port.Port, ep.Port.Protocol}
	for _, f := range t.families {
		if f.family != ep.Family() {
			continue
		}
		if gone {
			if sp := s.port(id); sp != nil && sp.families[familyIndex(f.family)] != nil {
				sp.families[familyIndex(f.family)].deleteEndpoint(ep.Target)
			}
			return
		}
		if !isValid(ep) {
			t.reportOnce(ctx, s, Problem{Family: f.family, Port: ep.Port, Reason: InvalidEndpoint,
				Message: fmt.Sprintf("endpoint %v has no port number", ep.Target.Addr())})
		}
		t.port(s, id, f).setEndpoint(ep)
		return
	}
	if !gone && ep.Family() == 0 {
		t.reportOnce(ctx, s, Problem{Port: ep.Port, Reason: InvalidEndpoint, Message: "an endpoint has no address"})
	}
}

// port returns the port of a service, after it has made it if need be.
func (t *Table) port(s *service, id portID, f *family) *port {
	sp := s.port(id)
	if sp == nil {
		sp = &servicePort{id: id}
		s.addPort(sp)
	}
	p := &sp.families[familyIndex(f.family)]
	if *p == nil {
		name := model.PortName{Service: s.name, Port: id.name, Protocol: id.protocol}
		*p = &port{family: f, service: s, current: Port{Name: name}}
	}
	return *p
}

func (t *Table) setService(ctx context.Context, s *service, next *model.Service) {
	before := s.object
	if before.Equal(next) {
		return
	}
	if before != nil && before.UID != next.UID {
		t.deleteService(s) // another one of that name: it has nothing to keep
		before = nil
	}
	s.object = next
	t.countHealthCheck(before, next)
	same := sameFrontends(before, next)
	reported := s.problems
	s.problems = nil
	for k, p := range reported {
		if p.Reason == InvalidEndpoint { // the service says nothing of these
			s.keepProblem(p)
			delete(reported, k)
		}
	}
	report := func(p Problem) {
		if _, told := reported[p.key()]; told {
			s.keepProblem(p)
		} else {
			t.reportOnce(ctx, s, p)
		}
	}
	t.round++
	for _, f := range t.families {
		t.setPorts(s, f, same, report)
	}
}

// setPorts follows what a service says of its ports in one family.
func (t *Table) setPorts(s *service, f *family, same bool, report func(Problem)) {
	next := s.object
	var affinity time.Duration
	if next.SessionAffinityTimeout > 0 {
		affinity = max(next.SessionAffinityTimeout, time.Second)
	}
	ranges := next.SourceRanges(f.family)
	left := t.options.MaxFrontends
	for _, sp := range next.Ports {
		spec := Port{Name: next.PortName(sp), Routes: sp.Routes(f.family), AffinityTimeout: affinity}
		if spec.Routes.Sets() == 0 {
			continue
		}
		if sp.Port == 0 || sp.Protocol == 0 {
			report(Problem{Family: f.family, Port: spec.Name, Reason: InvalidPort,
				Message: "it has no port number or protocol"})
			continue
		}
		p := t.port(s, portID{sp.Name, sp.Protocol}, f)
		if p.described == t.round {
			report(Problem{Family: f.family, Port: spec.Name, Reason: DuplicatePort,
				Message: "the service has two ports of that name and protocol"})
			continue
		}
		p.described = t.round
		if spec.Routes.External.Endpoints != 0 {
			spec.SourceRanges = ranges
		}
		asked, numbers := p.asked, [2]uint16{sp.Port, sp.NodePort}
		same := same && p.exists && p.numbers == numbers && sameKinds(&p.current, &spec)
		if !same || p.omitted > 0 || len(asked) > left {
			asked, p.omitted = frontends(f.family, next, sp, left)
		}
		if p.omitted > 0 {
			report(Problem{Family: f.family, Port: spec.Name, Reason: TooManyFrontends,
				Message: fmt.Sprintf("%d of its addresses are not served: a service may have %d frontends",
					p.omitted, t.options.MaxFrontends)})
		}
		left -= len(asked)
		p.numbers = numbers
		p.describe(spec, asked, clusterIP(asked))
	}
	for _, sp := range s.ports {
		if p := sp.families[familyIndex(f.family)]; p != nil && p.described != t.round {
			p.remove()
		}
	}
}

// sameKinds tells whether two ports have the same kinds of frontends.
func sameKinds(a, b *Port) bool {
	return (a.Routes.ClusterIP.Endpoints != 0) == (b.Routes.ClusterIP.Endpoints != 0) &&
		(a.Routes.External.Endpoints != 0) == (b.Routes.External.Endpoints != 0)
}

// clusterIP returns the cluster IP among frontends, or the zero Addr.
func clusterIP(list []Frontend) netip.Addr {
	for _, fr := range list {
		if fr.Kind == ClusterIP {
			return fr.Addr
		}
	}
	return netip.Addr{}
}

// deleteService takes back all that a service asks for. Its endpoints stay until they are deleted, too.
func (t *Table) deleteService(s *service) {
	t.countHealthCheck(s.object, nil)
	s.object, s.problems = nil, nil
	t.round++
	for _, sp := range s.ports {
		for _, p := range sp.families {
			if p != nil {
				p.remove()
			}
		}
	}
}

func (t *Table) countHealthCheck(before, after *model.Service) {
	for _, f := range t.families {
		if before != nil && before.HealthCheck != nil {
			f.healthChecks.remove(HealthCheck{before.HealthCheck.NodePort, before.Name})
		}
		if after != nil && after.HealthCheck != nil {
			f.healthChecks.add(HealthCheck{after.HealthCheck.NodePort, after.Name})
		}
	}
}

func (s *service) keepProblem(p Problem) {
	if s.problems == nil {
		s.problems = map[problemKey]Problem{}
	}
	s.problems[p.key()] = p
}

// reportOnce reports a problem of a service that was not reported since it began.
func (t *Table) reportOnce(ctx context.Context, s *service, p Problem) {
	if _, told := s.problems[p.key()]; !told {
		s.keepProblem(p)
		t.report(ctx, p)
	}
}

func (t *Table) report(ctx context.Context, p Problem) {
	klog.FromContext(ctx).Info("A part of a service port is not served", "port", p.Port, "family", p.Family,
		"reason", p.Reason, "message", p.Message)
	if t.options.OnProblem != nil {
		t.options.OnProblem(ctx, p)
	}
}
