package localstate

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// This file holds the last endpoints of the services in ClusterOptions.HoldEndpoints (S66): a change that would leave a
// service without a usable endpoint waits. So the slices that count for a service, those in service.slices, may differ
// from those in State.slices, which exist.

// waiting are the slices of a service whose changes wait, by name, as they are now; nil: the slice is gone.
type waiting map[string]*sliceIntake

func validateHeld(names []model.ServiceName) error {
	for _, name := range names {
		if name.Namespace == "" || name.Name == "" {
			return fmt.Errorf("hold endpoints: %q has no namespace or no name", name)
		}
	}
	return nil
}

// holds reports whether the last endpoints of a service are held: while it is served.
func (s *State) holds(svc *service) bool {
	return len(s.opts.HoldEndpoints) > 0 && svc.intake != nil && slices.Contains(s.opts.HoldEndpoints, svc.name)
}

// holdOrChange is changeSlice for a service whose last endpoints are held.
func (s *State) holdOrChange(svc *service, old, in *sliceIntake) {
	w := s.held[svc]
	before := w.families(svc)
	if w == nil {
		w = waiting{}
	}
	if in != nil {
		if counts := svc.slice(in.name); counts != nil && counts.family != in.family {
			s.replaceSlice(svc, counts, nil) // a slice has one family at a time
		}
		w[in.name] = in
	} else if w[old.name] = nil; svc.slice(old.name) == nil {
		delete(w, old.name) // it came and went while others were held
	}
	for _, f := range s.families {
		if w.usable(svc, f) || !waiting(nil).usable(svc, f) {
			s.endWaiting(svc, w, f)
		}
	}
	if s.held[svc] = w; len(w) == 0 {
		delete(s.held, svc)
	}
	s.logHeld(svc, before, w.families(svc))
}

// endWaiting lets the changes of slices of a family count.
func (s *State) endWaiting(svc *service, w waiting, f model.Family) {
	for name, now := range w {
		if counts := svc.slice(name); counts.is(f) || now.is(f) {
			s.replaceSlice(svc, counts, now)
			delete(w, name)
		}
	}
}

// endHold lets all changes count that wait, because the service is not served any more.
func (s *State) endHold(svc *service) {
	for name, now := range s.held[svc] {
		s.replaceSlice(svc, svc.slice(name), now)
	}
	delete(s.held, svc)
}

// logHeld logs in which families the last endpoints are held now, and were before. A State for a class does not.
func (s *State) logHeld(svc *service, before, after model.FamilySet) {
	if s.ignored == nil {
		return
	}
	for _, f := range s.families {
		switch {
		case !before.Has(f) && after.Has(f):
			s.log.Error(nil, "A Service has no usable endpoint any more; its last ones stay", "service", svc.name, "family", f)
		case before.Has(f) && !after.Has(f):
			s.log.Info("A Service whose last endpoints stayed has usable ones again", "service", svc.name, "family", f)
		}
	}
}

// usable reports whether a service has a usable endpoint in a family (S25), if what waits counts.
func (w waiting) usable(svc *service, f model.Family) bool {
	for _, slice := range w {
		if slice.is(f) && slice.usable() {
			return true
		}
	}
	return slices.ContainsFunc(svc.slices, func(slice *sliceIntake) bool {
		_, waits := w[slice.name]
		return !waits && slice.is(f) && slice.usable()
	})
}

// families returns those in which something waits.
func (w waiting) families(svc *service) (set model.FamilySet) {
	for name, now := range w {
		for _, slice := range []*sliceIntake{svc.slice(name), now} {
			if slice != nil {
				set |= slice.family.Set()
			}
		}
	}
	return set
}

// is reports whether there is a slice, of this family.
func (s *sliceIntake) is(f model.Family) bool { return s != nil && s.family == f }

// usable reports whether a slice has an endpoint that can be used.
func (s *sliceIntake) usable() bool {
	if len(s.ports) == 0 {
		return false
	}
	for i := range s.len() {
		if flags := s.flags(i); !flags.has(flagInvalid) && (flags.has(flagReady) || flags.draining()) {
			return true
		}
	}
	return false
}

// copyHeld copies what waits to the same service of a State for a class.
func (s *State) copyHeld(from *State, svc, of *service) {
	if from.held[of] == nil {
		return
	}
	w := waiting{}
	for name, now := range from.held[of] {
		if w[name] = nil; now != nil {
			in := *now
			in.service = svc
			w[name], s.slices[in.key()] = &in, &in
		}
	}
	s.held[svc] = w
}
