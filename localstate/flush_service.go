package localstate

import (
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// waveBuffers are buffers of a Flush that are reused from one service to the next.
type waveBuffers struct {
	order    []int         // ports of the service by name
	outcomes []portOutcome // by index in the service
	deletes  []*model.Endpoint
	sets     []*model.Endpoint
	olds     []*model.Endpoint // what each of sets replaces, or nil
	replaced ReplacedReceiver
	ports    [][]*model.Endpoint
	families model.PerFamily[familyBuffers]

	indexed, toIndex []*indexedPort // of ports that are still to come, and of those that have been computed

	candidates []candidate
	edits      []edit[*model.Endpoint]
	fresh      []model.Endpoint // the unused part of newEndpoint's last allocation
}

// portOutcome has the fields of a model.ServicePort that follow from objects other than the Service.
type portOutcome struct {
	routes           model.PerFamily[model.Routes]
	tooManyEndpoints bool
}

// familyBuffers has the data of one family of the current service.
type familyBuffers struct {
	all        entries // once allOf has been called
	allEntries bool
	difference difference // if the service has an index
}

// keepAtMost is the maximum size, in elements, of a buffer that is kept from one Flush to the next.
const keepAtMost = 4096

// release drops the buffers' references, and large buffers as a whole.
func (w *waveBuffers) release() {
	clear(w.candidates)
	clear(w.edits)
	clear(w.toIndex)
	w.indexed = nil
	if cap(w.candidates) > keepAtMost {
		w.candidates, w.edits = nil, nil
	}
	if cap(w.sets) > keepAtMost {
		w.deletes, w.sets, w.olds = nil, nil, nil
	}
	w.replaced = nil
	for _, b := range []*familyBuffers{&w.families.IPv4, &w.families.IPv6} {
		for _, e := range []*entries{&b.all, &b.difference.before, &b.difference.after} {
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

// flushService computes a service and hands over what differs.
func (s *State) flushService(svc *service, r Receiver) Changes {
	w, in := &s.wave, svc.intake
	ports := in.fields.Ports
	w.order = in.portsByName(w.order[:0])
	w.outcomes = append(w.outcomes[:0], make([]portOutcome, len(ports))...)
	w.deletes, w.sets, w.olds, w.ports = w.deletes[:0], w.sets[:0], w.olds[:0], w.ports[:0]
	refused := s.limits.refused(svc)
	s.openIndex(svc)
	localEndpoints := s.localEndpoints(svc)

	var noLocal noLocalPorts
	handed := svc.endpoints
	for _, i := range w.order {
		name := in.fields.PortName(ports[i])
		for len(handed) > 0 && handed[0][0].Port.Compare(name) < 0 { // the port was removed
			w.deleteAll(handed[0])
			handed = handed[1:]
		}
		var list []*model.Endpoint
		if len(handed) > 0 && handed[0][0].Port == name {
			list, handed = handed[0], handed[1:]
		}
		w.outcomes[i].tooManyEndpoints = refused != nil && refused[i]
		if list = s.flushPort(svc, i, list, &noLocal); len(list) > 0 {
			w.ports = append(w.ports, list)
		}
	}
	for _, list := range handed {
		w.deleteAll(list)
	}

	changes := Changes{Endpoints: len(w.deletes) + len(w.sets)}
	for _, e := range w.deletes {
		w.replaced.ReplacedEndpoint(e)
		r.DeleteEndpoint(e.Key())
		changes.Families |= e.Family().Set()
	}
	complete := in.complete(w.outcomes, localEndpoints, s.node.model.IP)
	if !complete.Equal(svc.handed) {
		if svc.handed != nil {
			w.replaced.ReplacedService(svc.handed)
		}
		r.SetService(complete)
		changes.Services++
		changes.touchService(complete, s.families)
		if svc.handed != nil {
			changes.touchService(svc.handed, s.families)
			if svc.index != nil && (svc.handed.HealthCheck == nil) != (complete.HealthCheck == nil) {
				svc.index.partsChange() // the parts of nodes have the counts of the health check
			}
		}
		svc.handed = complete
	}
	in.fields = svc.handed // one copy is enough
	for i, e := range w.sets {
		if w.olds[i] != nil {
			w.replaced.ReplacedEndpoint(w.olds[i])
		}
		r.SetEndpoint(e)
		changes.Families |= e.Family().Set()
	}

	if len(w.ports) == len(svc.endpoints) {
		copy(svc.endpoints, w.ports)
	} else {
		svc.endpoints = slices.Clone(w.ports)
	}
	clear(w.ports)
	clear(w.sets)
	clear(w.olds)
	clear(w.deletes)
	s.noLocal.add(svc.noLocal, -1)
	s.noLocal.add(noLocal, 1)
	svc.noLocal = noLocal
	s.closeIndex(svc)
	return changes
}

func (w *waveBuffers) deleteAll(list []*model.Endpoint) {
	w.deletes = append(w.deletes, list...)
}

// allOf returns all entries of a family of the current service.
func (w *waveBuffers) allOf(svc *service, f model.Family) *entries {
	b := w.families.At(f)
	if !b.allEntries {
		b.all.reset()
		b.all.addAll(svc, f)
		b.allEntries = true
	}
	return &b.all
}

// localEndpoints returns the count that a health check reports (S38): the distinct addresses of local ready endpoints
// over all ports of the slices, whether or not the service has these ports. A service that gets no endpoints reports
// none (S60).
func (s *State) localEndpoints(svc *service) (count model.PerFamily[int]) {
	if svc.intake.fields.HealthCheck == nil || s.limits.refusesAll(svc) {
		return count
	}
	for _, f := range s.families {
		if svc.intake.families.Has(f) {
			*count.At(f) = s.localEndpointsOf(svc, f)
		}
	}
	return count
}
