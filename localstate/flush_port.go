package localstate

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// flushPort computes the i-th port of a service: its routes and the changes of its endpoints, which it puts into the
// buffers. What policies and hints decide is in rule.go. list has the endpoints that have been handed over. flushPort
// returns the new list, in the same memory if possible.
func (s *State) flushPort(svc *service, i int, list []*model.Endpoint, noLocal *noLocalPorts) []*model.Endpoint {
	w := &s.wave
	clear(w.edits)
	w.edits = w.edits[:0]
	ipv6 := firstIPv6(list)
	for _, f := range s.families {
		p, part := s.familyPort(svc, &svc.intake.fields.Ports[i], f), section{list, 0, ipv6}
		if f == model.IPv6 {
			part = section{list, ipv6, len(list)}
		}
		if !svc.intake.families.Has(f) {
			p.merge(nil, part, &rules{})
			continue
		}
		if w.outcomes[i].tooManyEndpoints {
			*w.outcomes[i].routes.At(f), _ = p.decide(&counts{})
			p.merge(nil, part, &rules{})
			continue
		}
		n := p.look()
		routes, rules := p.decide(&n.counts)
		p.update(&n, &rules, part)
		*w.outcomes[i].routes.At(f) = routes
		noLocal.count(f, routes, &n.counts)
	}
	return applyEdits(list, w.edits)
}

// section is list[from:to], a part of the endpoints of a port that have been handed over.
type section struct {
	list     []*model.Endpoint
	from, to int
}

// firstIPv6 returns the index of the first IPv6 endpoint in a list.
func firstIPv6(list []*model.Endpoint) int {
	i, _ := slices.BinarySearchFunc(list, model.IPv6,
		func(e *model.Endpoint, f model.Family) int { return int(e.Family()) - int(f) })
	return i
}

// candidates returns the port's candidates among the entries.
func (p *familyPort) candidates(e *entries) []candidate {
	w := &p.wave
	clear(w.candidates) // drop references to another service's slices
	w.candidates = e.candidates(w.candidates[:0], e.forPort(p.name.Port, p.name.Protocol))
	return w.candidates
}

func (p *familyPort) allCandidates() []candidate {
	return p.candidates(p.wave.allOf(p.svc, p.family))
}

// merge compares candidates with what has been handed over, both in order of target. It puts the difference into the
// buffers: the calls for the receiver, and the edits of the list.
func (p *familyPort) merge(candidates []candidate, part section, r *rules) {
	w, list, at, to := &p.wave, part.list, part.from, part.to
	chunk := 1
	if at == to { // the list is empty: endpoints that are added together usually stay together
		chunk = len(candidates)
	}
	for i := range candidates {
		c := &candidates[i]
		sets := r.sets(c)
		if !c.handedOver(&p.opts, sets, p.name.Protocol) {
			continue
		}
		for at < to && model.CompareTargets(list[at].Target, c.target) < 0 {
			w.remove(list[at], at)
			at++
		}
		value := c.model(p.name, sets)
		switch found := at < to && list[at].Target == c.target; {
		case !found:
			w.insert(w.newEndpoint(value, chunk-i), at)
		case *list[at] == value:
			at++
		default:
			w.replace(list[at], w.newEndpoint(value, 1), at)
			at++
		}
	}
	for ; at < to; at++ {
		w.remove(list[at], at)
	}
}

// newEndpoint returns a newly allocated endpoint. It allocates in small groups, for up to toCome more: a group is freed
// only when all its endpoints are gone, so large groups would waste memory.
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
	w.deletes = append(w.deletes, e)
	w.edits = append(w.edits, edit[*model.Endpoint]{at: at, removes: true})
}

func (w *waveBuffers) insert(e *model.Endpoint, at int) {
	w.sets, w.olds = append(w.sets, e), append(w.olds, nil)
	w.edits = append(w.edits, edit[*model.Endpoint]{at: at, inserts: true, value: e})
}

func (w *waveBuffers) replace(old, e *model.Endpoint, at int) {
	w.sets, w.olds = append(w.sets, e), append(w.olds, old)
	w.edits = append(w.edits, edit[*model.Endpoint]{at: at, removes: true, inserts: true, value: e})
}
