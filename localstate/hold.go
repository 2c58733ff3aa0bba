package localstate

import (
	"fmt"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// This file holds the last endpoints of the services in ClusterOptions.HoldEndpoints (S66): a change that would leave a
// service without a usable endpoint is held back. So the slices that count for a service, those in service.slices, may
// differ from those that exist, in State.slices.

// waiting has the slices of a service whose changes are held back, by name, as they are now; nil: the slice was
// deleted.
type waiting map[string]*sliceIntake

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
		delete(w, old.name) // it was added and deleted while others were held
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

// endWaiting applies the held changes to slices of a family.
func (s *State) endWaiting(svc *service, w waiting, f model.Family) {
	for name, now := range w {
		if counts := svc.slice(name); counts.is(f) || now.is(f) {
			s.replaceSlice(svc, counts, now)
			delete(w, name)
		}
	}
}

// endHold applies all held changes, because the service is no longer served.
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
			s.log.Error(nil, "A Service has no usable endpoint any more; keeping its last ones", "service", svc.name,
				"family", f)
		case before.Has(f) && !after.Has(f):
			s.log.Info("A Service whose last endpoints were kept has usable ones again", "service", svc.name, "family", f)
		}
	}
}

// usable reports whether a service would have a usable endpoint in a family (S25) if the held changes counted.
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

// families returns the families in which changes are held back.
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

// is reports whether s is a slice of this family; nil is not.
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

// copyHeld copies held changes to the same service of a State for a class.
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
