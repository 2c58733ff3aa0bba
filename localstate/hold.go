package localstate

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// This file holds the last endpoints of the services in ClusterOptions.HoldEndpoints (S66): a port that would be left
// without a usable endpoint keeps the slices that it had. So the slices that count for a service, those in
// service.slices, may differ from those that exist, in State.slices.

// hold is how the slices that count for a service differ from those that exist.
type hold struct {
	now map[string]*sliceIntake // the slices that exist, by name
	// last has, for each port that is held, the slices that it keeps. In service.slices they have only such ports, and
	// those in now have none of these.
	last map[heldPort][]*sliceIntake
}

// heldPort is a port of a service in one family.
type heldPort struct {
	family   model.Family
	name     string
	protocol model.Protocol
}

func validateHeld(names []model.ServiceName) error {
	for _, name := range names {
		if name.Namespace == "" || name.Name == "" {
			return fmt.Errorf("hold endpoints: %q has no namespace or no name", name)
		}
	}
	return nil
}

// holds reports whether the last endpoints of a service are to be held: the options name it, and it is served.
func (s *State) holds(svc *service) bool {
	return len(s.opts.HoldEndpoints) > 0 && svc.intake != nil && slices.Contains(s.opts.HoldEndpoints, svc.name)
}

// holdOrChange is changeSlice for a service whose last endpoints are held.
func (s *State) holdOrChange(svc *service, old, in *sliceIntake) {
	h := s.held[svc]
	if h == nil {
		h = &hold{now: make(map[string]*sliceIntake, len(svc.slices))}
		for _, slice := range svc.slices {
			h.now[slice.name] = slice
		}
	}
	before := slices.Collect(maps.Values(h.now))
	if in != nil {
		h.now[in.name] = in
	} else {
		delete(h.now, old.name)
	}
	s.updateHold(svc, h, before)
}

// updateHold determines which ports of a service are held, after a change of the Service or of h.now. before has the
// slices that existed before.
func (s *State) updateHold(svc *service, h *hold, before []*sliceIntake) {
	now, last := slices.Collect(maps.Values(h.now)), map[heldPort][]*sliceIntake{}
	for p := range s.heldPorts(svc) {
		was, wasHeld := h.last[p]
		if !wasHeld {
			was = p.of(before)
		}
		if slices.ContainsFunc(was, p.usableIn) && !slices.ContainsFunc(now, p.usableIn) {
			last[p] = was
		}
		s.logHeld(svc, p, wasHeld, last[p] != nil)
	}
	h.last = last
	if s.held[svc] = h; len(last) == 0 {
		delete(s.held, svc)
	}
	s.setSlices(svc, h.counting())
}

// heldPorts yields the ports of a service, by name, in each of its families.
func (s *State) heldPorts(svc *service) iter.Seq[heldPort] {
	return func(yield func(heldPort) bool) {
		for _, f := range s.families {
			if !svc.intake.families.Has(f) {
				continue
			}
			for _, i := range svc.intake.portsByName(nil) {
				port := svc.intake.fields.Ports[i]
				if !yield(heldPort{f, port.Name, port.Protocol}) {
					return
				}
			}
		}
	}
}

// counting returns the slices that count, by name.
func (h *hold) counting() map[string]*sliceIntake {
	all := make(map[string]*sliceIntake, len(h.now))
	for name, slice := range h.now {
		if rest := slice.onlyPorts(func(p heldPort) bool { return h.last[p] == nil }); rest != nil {
			all[name] = rest
		}
	}
	for _, list := range h.last {
		for _, slice := range list {
			held := *slice.onlyPorts(func(p heldPort) bool { return slices.ContainsFunc(h.last[p], slice.sameVersion) })
			held.name = heldName(slice, held.ports[0])
			all[held.name] = &held
		}
	}
	return all
}

// sameVersion reports whether o is the same slice with the same content.
func (s *sliceIntake) sameVersion(o *sliceIntake) bool { return s.name == o.name && s.sameContent(o) }

// heldName names a version of a slice that is held for some ports, the first of which is p. Such names sort like those
// of the slices, and no object has one.
func heldName(slice *sliceIntake, p slicePort) string {
	return fmt.Sprintf("%s%s%v %v %s", slice.name, heldSeparator, slice.family, p.protocol, p.name)
}

const heldSeparator = "\x00"

// setSlices replaces the slices that count for a service.
func (s *State) setSlices(svc *service, all map[string]*sliceIntake) {
	for _, slice := range slices.Clone(svc.slices) {
		now := all[slice.name]
		delete(all, slice.name)
		same := now == slice || now != nil && s.slices[now.key()] != now && now.sameContent(slice)
		if !same {
			s.replaceSlice(svc, slice, now)
		}
	}
	for _, slice := range all {
		s.replaceSlice(svc, nil, slice)
	}
}

// endHold makes the slices that exist count, because the service is no longer served.
func (s *State) endHold(svc *service) {
	if h := s.held[svc]; h != nil {
		delete(s.held, svc)
		s.setSlices(svc, h.now)
	}
}

// logHeld logs that the last endpoints of a port are held, or no longer. A State for a class does not.
func (s *State) logHeld(svc *service, p heldPort, before, after bool) {
	if s.ignored == nil || before == after {
		return
	}
	values := []any{"service", svc.name, "port", p.name, "protocol", p.protocol, "family", p.family}
	if after {
		s.log.Error(nil, "A Service has no usable endpoint any more; keeping its last ones", values...)
	} else {
		s.log.Info("A Service whose last endpoints were kept has usable ones again", values...)
	}
}

// ignored returns the slices that exist and do not count, for Explain.
func (h *hold) ignored(svc model.ServiceName) (list []ignoredSlice) {
	counting := h.counting()
	for name, slice := range h.now {
		if counting[name] == nil {
			list = append(list, ignoredSlice{name, svc.Name, slice.len(), "the last usable endpoints are held"})
		}
	}
	return list
}

// nameSlicesAsObjects gives the slices of a service the names of their objects, for Explain.
func (svc *service) nameSlicesAsObjects() {
	for i, slice := range svc.slices {
		own := *slice
		own.name, _, _ = strings.Cut(slice.name, heldSeparator)
		svc.slices[i] = &own
	}
}

// markHeld marks what is held.
func (e *Explanation) markHeld(last map[heldPort][]*sliceIntake) {
	e.Held = len(last) > 0
	for i := range e.Ports {
		p := &e.Ports[i]
		for held := range last {
			if p.Port.Port == held.name && p.Port.Protocol == held.protocol && p.Family == held.family.String() {
				p.Held = true
			}
		}
	}
}

// of returns those of some slices that have the port.
func (p heldPort) of(list []*sliceIntake) (with []*sliceIntake) {
	for _, slice := range list {
		if p.isIn(slice) {
			with = append(with, slice)
		}
	}
	return with
}

func (p heldPort) isIn(slice *sliceIntake) bool {
	return slice.family == p.family && slices.ContainsFunc(slice.ports,
		func(o slicePort) bool { return o.name == p.name && o.protocol == p.protocol })
}

// usableIn reports whether a slice has the port and an endpoint that can be used (S21).
func (p heldPort) usableIn(slice *sliceIntake) bool {
	return p.isIn(slice) && slice.usable()
}

// usable reports whether a slice has an endpoint that can be used (S21).
func (s *sliceIntake) usable() bool {
	for i := range s.len() {
		if flags := s.flags(i); !flags.has(flagInvalid) && (flags.has(flagReady) || flags.draining()) {
			return true
		}
	}
	return false
}

// onlyPorts returns the slice with those of its ports that keep selects, or nil if it selects none of them.
func (s *sliceIntake) onlyPorts(keep func(heldPort) bool) *sliceIntake {
	drop := func(p slicePort) bool { return !keep(heldPort{s.family, p.name, p.protocol}) }
	if !slices.ContainsFunc(s.ports, drop) {
		return s
	}
	own := *s
	if own.ports = slices.DeleteFunc(slices.Clone(s.ports), drop); len(own.ports) == 0 {
		return nil
	}
	return &own
}

// copyHold copies the hold of a service to the same service of a State for a class, which has copies of the slices that
// count.
func (s *State) copyHold(from *State, svc, of *service) {
	h := from.held[of]
	if h == nil {
		return
	}
	own := &hold{map[string]*sliceIntake{}, map[heldPort][]*sliceIntake{}}
	copies := map[*sliceIntake]*sliceIntake{}
	copied := func(slice *sliceIntake) *sliceIntake {
		if copies[slice] == nil {
			in := *slice
			in.service = svc
			copies[slice] = &in
		}
		return copies[slice]
	}
	for _, slice := range of.slices {
		copies[slice] = svc.slice(slice.name)
	}
	for name, slice := range h.now {
		own.now[name] = copied(slice)
		s.slices[slice.key()] = own.now[name]
	}
	for p, list := range h.last {
		for _, slice := range list {
			own.last[p] = append(own.last[p], copied(slice))
		}
	}
	s.held[svc] = own
}
