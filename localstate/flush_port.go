package localstate

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// flushPort computes the i-th port of a service: its routes and the changes of its endpoints, which it puts into the
// buffers. list has the endpoints that have been handed over; it returns the new list, in the same memory if possible.
func (s *State) flushPort(svc *service, i int, name model.PortName, list []*model.Endpoint,
	noLocal *noLocalPorts) []*model.Endpoint {
	w := &s.wave
	now := indexedPort{name: name.Port, protocol: name.Protocol}
	before := svc.index.port(&now)
	clear(w.edits)
	w.edits = w.edits[:0]
	ipv6 := firstIPv6(list)
	for _, f := range s.families {
		p := familyPort{s, svc, &svc.intake.fields.Ports[i], name, f, list, 0, ipv6}
		if f == model.IPv6 {
			p.from, p.to = ipv6, len(list)
		}
		if !svc.intake.serves(f) {
			p.merge(nil, p.from, p.to, &rules{})
			continue
		}
		k := familyIndex(f)
		if before == nil || !before.known[k] {
			all := p.allCandidates()
			p.counter().count(&now.counts[k], all, 1)
			r := p.rules(&now.counts[k])
			p.merge(all, p.from, p.to, &r)
		} else {
			now.counts[k] = p.countTouched(before.counts[k])
			if r := p.rules(&now.counts[k]); r == p.rulesBefore(before) {
				p.mergeTouched(r)
			} else {
				p.merge(p.allCandidates(), p.from, p.to, &r)
			}
		}
		now.known[k] = true
		w.routes[i][k] = p.routes(&now.counts[k])
		now.inUse[k] = w.routes[i][k].Sets()
		noLocal.count(f, w.routes[i][k], &now.counts[k])
	}
	if svc.size > s.indexAbove/2 { // or it will have no index
		w.indexed = append(w.indexed, now)
	}
	return applyEdits(list, w.edits)
}

// firstIPv6 returns the index of the first IPv6 endpoint in a list.
func firstIPv6(list []*model.Endpoint) int {
	i, _ := slices.BinarySearchFunc(list, model.IPv6,
		func(e *model.Endpoint, f model.Family) int { return int(e.Family()) - int(f) })
	return i
}

// port returns what is known of a port, or nil.
func (x *index) port(p *indexedPort) *indexedPort {
	if x == nil {
		return nil
	}
	i, found := slices.BinarySearchFunc(x.ports, p, func(a indexedPort, b *indexedPort) int { return a.compare(b) })
	if !found {
		return nil
	}
	return &x.ports[i]
}

// familyPort is a port of a service in one family while it is computed.
type familyPort struct {
	*State
	svc    *service
	port   *model.ServicePort
	name   model.PortName
	family model.Family
	// list[from:to] are the port's endpoints in this family that have been handed over.
	list     []*model.Endpoint
	from, to int
}

// candidates returns the candidates among the entries.
func (p *familyPort) candidates(e *entries) []candidate {
	w := &p.wave
	clear(w.candidates) // drop references to another service's slices
	w.candidates = e.candidates(w.candidates[:0], e.forPort(p.name.Port, p.name.Protocol))
	return w.candidates
}

func (p *familyPort) counter() counter { return counter{p.opts.NodeName, p.node.model.Zone} }

func (p *familyPort) allCandidates() []candidate {
	return p.candidates(p.wave.allOf(p.svc, p.family))
}

// countTouched counts what changed.
func (p *familyPort) countTouched(n counts) counts {
	d := &p.wave.families[familyIndex(p.family)].difference
	p.counter().count(&n, p.candidates(&d.before), -1)
	p.counter().count(&n, p.candidates(&d.after), 1)
	return n
}

// rules returns the rules that follow from the counts.
func (p *familyPort) rules(n *counts) rules {
	return p.rulesFor(n, p.svc.intake.fields.Headless, p.routes(n).Sets())
}

// rulesBefore returns the rules by which the endpoints were handed over.
func (p *familyPort) rulesBefore(before *indexedPort) rules {
	k := familyIndex(p.family)
	return p.rulesFor(&before.counts[k], p.svc.handed.Headless, before.inUse[k])
}

func (p *familyPort) rulesFor(n *counts, headless bool, inUse model.EndpointSets) rules {
	if headless { // the other questions are about traffic
		return rules{headless: true, inUse: model.ClusterSet}
	}
	k := p.counter()
	return rules{nodeName: k.nodeName, zone: k.zone, topology: n.topology(), anyReady: n.ready > 0,
		anyLocalReady: n.localReady > 0, inUse: inUse}
}

// routes asks the decision table (S25 to S28).
func (p *familyPort) routes(n *counts) model.Routes {
	in := p.svc.intake
	return model.NewRoutes(model.RoutePolicy{
		Internal:          in.fields.InternalTrafficPolicy,
		External:          in.fields.ExternalTrafficPolicy,
		ClusterIP:         !in.fields.Headless,
		ExternalAddresses: p.port.NodePort != 0 || in.external(p.family),
		NoEndpoints:       !n.any(),
		DetectsLocalPods:  p.node.model.LocalPods.Detects(p.family),
		MasqueradeAll:     p.opts.MasqueradeAll,
	})
}

// mergeTouched compares the candidates at the addresses that changes of slices touch.
func (p *familyPort) mergeTouched(r rules) {
	d := &p.wave.families[familyIndex(p.family)].difference
	if len(d.touched) == 0 {
		return
	}
	candidates := p.candidates(&d.after)
	from := p.from
	for _, addr := range d.touched {
		n := 0
		for n < len(candidates) && candidates[n].target.Addr() == addr {
			n++
		}
		byAddr := func(e *model.Endpoint, addr netip.Addr) int { return e.Target.Addr().Compare(addr) }
		i, _ := slices.BinarySearchFunc(p.list[from:p.to], addr, byAddr)
		from += i
		to := from
		for to < p.to && p.list[to].Target.Addr() == addr {
			to++
		}
		p.merge(candidates[:n], from, to, &r)
		candidates, from = candidates[n:], to
	}
}

// merge compares candidates with a part of what has been handed over, both in order of target. It puts the difference
// into the buffers: the calls for the receiver, and the edits of the list.
func (p *familyPort) merge(candidates []candidate, from, to int, r *rules) {
	w, at := &p.wave, from
	chunk := 1
	if from == to { // all that come stay together, as a rule
		chunk = len(candidates)
	}
	for i := range candidates {
		c := &candidates[i]
		sets := r.sets(c)
		if !c.handedOver(&p.opts, sets, p.name.Protocol) {
			continue
		}
		for at < to && model.CompareTargets(p.list[at].Target, c.target) < 0 {
			w.remove(p.list[at], at)
			at++
		}
		value := c.model(p.name, sets)
		switch found := at < to && p.list[at].Target == c.target; {
		case !found:
			w.insert(w.newEndpoint(value, chunk-i), at)
		case *p.list[at] == value:
			at++
		default:
			w.replace(w.newEndpoint(value, 1), at)
			at++
		}
	}
	for ; at < to; at++ {
		w.remove(p.list[at], at)
	}
}

// newEndpoint returns a newly allocated endpoint. It allocates those still to come in small groups: a group is freed
// only when all its endpoints are gone, so large ones would waste memory.
func (w *waveBuffers) newEndpoint(value model.Endpoint, toCome int) *model.Endpoint {
	if len(w.fresh) == 0 {
		w.fresh = make([]model.Endpoint, max(1, min(toCome, 4)))
	}
	e := &w.fresh[0]
	w.fresh = w.fresh[1:]
	*e = value
	return e
}

func (w *waveBuffers) remove(e *model.Endpoint, at int) {
	w.deletes = append(w.deletes, e.Key())
	w.edits = append(w.edits, edit[*model.Endpoint]{at: at, removes: true})
}

func (w *waveBuffers) insert(e *model.Endpoint, at int) {
	w.sets = append(w.sets, e)
	w.edits = append(w.edits, edit[*model.Endpoint]{at: at, inserts: true, value: e})
}

func (w *waveBuffers) replace(e *model.Endpoint, at int) {
	w.sets = append(w.sets, e)
	w.edits = append(w.edits, edit[*model.Endpoint]{at: at, removes: true, inserts: true, value: e})
}
