package localstate

import (
	"cmp"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// waveBuffers are reused from one service to the next.
type waveBuffers struct {
	order    []int // ports of the service by name
	routes   [][2]model.Routes
	deletes  []model.EndpointKey
	sets     []*model.Endpoint
	ports    [][]*model.Endpoint
	indexed  []indexedPort
	families [2]familyBuffers

	candidates []candidate
	edits      []edit[*model.Endpoint]
	fresh      []model.Endpoint // the unused part of newEndpoint's last allocation
}

// familyBuffers are what is known of one family of the current service.
type familyBuffers struct {
	all        entries // once allOf has been called
	allEntries bool
	difference difference // if the service has an index
}

// keepAtMost is the number of elements of a buffer that is kept from one Flush to the next.
const keepAtMost = 4096

// release drops what the buffers refer to, and large buffers.
func (w *waveBuffers) release() {
	clear(w.candidates)
	clear(w.edits)
	if cap(w.candidates) > keepAtMost {
		w.candidates, w.edits = nil, nil
	}
	if cap(w.sets) > keepAtMost {
		w.deletes, w.sets = nil, nil
	}
	for f := range w.families {
		b := &w.families[f]
		for _, e := range []*entries{&b.all, &b.difference.before, &b.difference.after, &b.difference.own[0],
			&b.difference.own[1]} {
			e.reset()
			if cap(e.list) > keepAtMost {
				*e = entries{}
			}
		}
		clear(b.difference.unchanged)
		b.difference.unchanged = b.difference.unchanged[:0]
		if cap(b.difference.touched) > keepAtMost {
			b.difference = difference{}
		}
	}
	w.fresh = nil
}

// flushService computes a service and hands over what differs. Which endpoints it looks at depends on what is known:
//
//	of the service                    endpoints looked at
//	no index                          all
//	an index, by port and family:
//	  not known                       all
//	  known, but the rules differ     all
//	  known, with the same rules      those at addresses that changes of slices touch
func (s *State) flushService(svc *service, r Receiver) Changes {
	w, in := &s.wave, svc.intake
	ports := in.fields.Ports
	w.order = w.order[:0]
	for i := range ports {
		w.order = append(w.order, i)
	}
	slices.SortFunc(w.order, func(a, b int) int {
		return cmp.Or(cmp.Compare(ports[a].Name, ports[b].Name), cmp.Compare(ports[a].Protocol, ports[b].Protocol))
	})
	w.routes = append(w.routes[:0], make([][2]model.Routes, len(ports))...)
	w.deletes, w.sets, w.ports, w.indexed = w.deletes[:0], w.sets[:0], w.ports[:0], w.indexed[:0]
	for f := range w.families {
		w.families[f].allEntries = false
	}
	if svc.index != nil {
		for _, f := range s.families {
			w.families[familyIndex(f)].difference.find(svc, f)
		}
	}
	localEndpoints := s.localEndpoints(svc)

	var noLocal noLocalPorts
	handed := svc.endpoints
	for _, i := range w.order {
		name := in.fields.PortName(ports[i])
		for len(handed) > 0 && handed[0][0].Port.Compare(name) < 0 { // of a port that is gone
			w.deleteAll(handed[0])
			handed = handed[1:]
		}
		var list []*model.Endpoint
		if len(handed) > 0 && handed[0][0].Port == name {
			list, handed = handed[0], handed[1:]
		}
		if list = s.flushPort(svc, i, name, list, &noLocal); len(list) > 0 {
			w.ports = append(w.ports, list)
		}
	}
	for _, list := range handed {
		w.deleteAll(list)
	}

	changes := Changes{Endpoints: len(w.deletes) + len(w.sets)}
	for _, key := range w.deletes {
		r.DeleteEndpoint(key)
		changes.touch(model.FamilyOf(key.Target.Addr()))
	}
	complete := in.complete(w.routes, localEndpoints, s.node.model.IP)
	if !complete.Equal(svc.handed) {
		r.SetService(complete)
		changes.Services++
		changes.touchService(complete, s.families)
		if svc.handed != nil {
			changes.touchService(svc.handed, s.families)
		}
		svc.handed = complete
	}
	in.fields = svc.handed // one copy is enough
	for _, e := range w.sets {
		r.SetEndpoint(e)
		changes.touch(e.Family())
	}

	if len(w.ports) == len(svc.endpoints) {
		copy(svc.endpoints, w.ports)
	} else {
		svc.endpoints = slices.Clone(w.ports)
	}
	clear(w.ports)
	clear(w.sets)
	s.noLocal.add(svc.noLocal, -1)
	s.noLocal.add(noLocal, 1)
	svc.noLocal = noLocal
	s.updateIndex(svc)
	return changes
}

// updateIndex brings the index up to date with the service that has just been computed, if it is large enough to have
// one.
func (s *State) updateIndex(svc *service) {
	w := &s.wave
	switch {
	case svc.size <= s.indexAbove/2, svc.size <= s.indexAbove && svc.index == nil:
		svc.index = nil
		return
	case svc.index == nil:
		svc.index = &index{}
		for _, f := range s.families {
			of := slices.DeleteFunc(slices.Clone(svc.slices),
				func(slice *sliceIntake) bool { return slice.family != f })
			if len(of) > 1 {
				svc.index.hashes[familyIndex(f)] = hashes(of)
			}
		}
	}
	svc.index.before = nil
	if len(svc.index.ports) == len(w.indexed) {
		copy(svc.index.ports, w.indexed)
	} else {
		svc.index.ports = slices.Clone(w.indexed)
	}
}

func (w *waveBuffers) deleteAll(list []*model.Endpoint) {
	for _, e := range list {
		w.deletes = append(w.deletes, e.Key())
	}
}

// allOf returns all entries of a family of the current service.
func (w *waveBuffers) allOf(svc *service, f model.Family) *entries {
	b := &w.families[familyIndex(f)]
	if !b.allEntries {
		svc.entries(&b.all, f)
		b.allEntries = true
	}
	return &b.all
}

// entries fills in all entries of a family.
func (svc *service) entries(e *entries, f model.Family) {
	e.reset()
	for _, slice := range svc.slices {
		if slice.family == f {
			e.slices = append(e.slices, slice)
		}
	}
	e.addAll()
}

// localEndpoints counts what a health check reports (S38): the distinct addresses of local ready endpoints over all
// ports of the slices, whether the service has these ports or not.
func (s *State) localEndpoints(svc *service) [2]int {
	var count [2]int
	if svc.intake.fields.HealthCheck == nil {
		return count
	}
	w := &s.wave
	for _, f := range s.families {
		i := familyIndex(f)
		switch {
		case !svc.intake.serves(f):
		case svc.index != nil && svc.handed.HealthCheck != nil && svc.handed.ClusterIP(f).IsValid():
			d := &w.families[i].difference
			count[i] = svc.handed.HealthCheck.LocalEndpoints(f)
			for _, addr := range d.touched {
				if d.before.servesLocally(d.before.at(addr)) {
					count[i]--
				}
				if d.after.servesLocally(d.after.at(addr)) {
					count[i]++
				}
			}
		default:
			count[i] = w.allOf(svc, f).countLocal()
		}
	}
	return count
}
