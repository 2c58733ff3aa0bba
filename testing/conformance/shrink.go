package conformance

import (
	"reflect"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// shrink reduces a script while it still fails, with a limited number of calls of fails. It always keeps the last wave.
// Parts that cannot be left out at first are tried again after others have been removed.
func shrink(sc script, fails func(script) bool, tries int) script {
	for tries > 0 {
		smaller := false
		sc = shrinkOnce(sc, func(candidate script) bool {
			if tries == 0 {
				return false
			}
			tries--
			failed := fails(candidate)
			smaller = smaller || failed
			return failed
		})
		if !smaller {
			break
		}
	}
	return sc
}

// shrinkOnce tries to leave out each part of a script once.
func shrinkOnce(sc script, fails func(script) bool) script {
	try := func(smaller script) bool {
		if reflect.DeepEqual(smaller, sc) || !fails(smaller) {
			return false
		}
		sc = smaller
		return true
	}
	// Waves: often the last one is enough; otherwise drop as many from the front as possible.
	for drop := len(sc.steps) - 1; drop > 0; drop /= 2 {
		for len(sc.steps) > drop && try(sc.withoutSteps(0, drop)) {
		}
	}
	for i := len(sc.steps) - 2; i >= 0; i-- {
		try(sc.withoutSteps(i, i+1))
	}
	// Services: from all waves, otherwise from a single one.
	for _, name := range sc.serviceNames() {
		isIt := func(s service) bool { return s.name == name }
		if try(sc.edit(func(s service) (service, bool) { return s, !isIt(s) })) {
			continue
		}
		for i, st := range sc.steps {
			if slices.ContainsFunc(st.services, isIt) {
				without := script{sc.setup, slices.Clone(sc.steps)}
				without.steps[i].services = slices.DeleteFunc(slices.Clone(st.services), isIt)
				try(without)
			}
		}
	}
	usual := sc
	usual.setup.masqueradeAll = false
	try(usual)
	for i := range sc.steps {
		if sc.steps[i].event != nothing {
			calm := script{sc.setup, slices.Clone(sc.steps)}
			calm.steps[i].event = nothing
			try(calm)
		}
	}
	for _, name := range sc.serviceNames() {
		for _, simplify := range simplifications {
			try(sc.edit(func(s service) (service, bool) {
				if s.name == name {
					s = simplify(s)
				}
				return s, true
			}))
		}
		for i := mostPorts - 1; i >= 0; i-- {
			try(sc.edit(func(s service) (service, bool) {
				if s.name == name && len(s.ports) > 1 && i < len(s.ports) {
					s.ports = slices.Delete(slices.Clone(s.ports), i, i+1)
				}
				return s, true
			}))
		}
		for _, p := range network.Places() {
			without := func(eps []endpoint) []endpoint {
				return slices.DeleteFunc(slices.Clone(eps), func(e endpoint) bool { return e.at == p.Name })
			}
			try(sc.edit(func(s service) (service, bool) {
				if s.name == name {
					s.endpoints = without(s.endpoints)
					s.ports = slices.Clone(s.ports)
					for i := range s.ports {
						if s.ports[i].endpoints != nil {
							s.ports[i].endpoints = without(s.ports[i].endpoints)
						}
					}
				}
				return s, true
			}))
		}
	}
	return sc
}

// simplifications each remove something from a service.
var simplifications = []func(service) service{
	func(s service) service { s.ranges = nil; return s },
	func(s service) service { s.affinity = 0; return s },
	func(s service) service { s.externalLocal = false; return s },
	func(s service) service { s.internalLocal = false; return s },
	func(s service) service { s.nodePort = false; return s },
	func(s service) service { s.externalIP = false; return s },
	func(s service) service { s.vip = false; return s },
	func(s service) service { s.contestsExternalIP = false; return s },
	func(s service) service { s.contestsVIP = false; return s },
	func(s service) service { s.listsNode = false; return s },
}

func (sc script) withoutSteps(from, to int) script {
	return script{sc.setup, slices.Delete(slices.Clone(sc.steps), from, to)}
}

// edit changes or removes services in all waves.
func (sc script) edit(f func(service) (service, bool)) script {
	edited := script{setup: sc.setup}
	for _, st := range sc.steps {
		next := scriptStep{event: st.event}
		for _, s := range st.services {
			if s, keep := f(s); keep {
				next.services = append(next.services, s)
			}
		}
		edited.steps = append(edited.steps, next)
	}
	return edited
}

func (sc script) serviceNames() []string {
	var names []string
	for _, st := range sc.steps {
		for _, s := range st.services {
			if !slices.Contains(names, s.name) {
				names = append(names, s.name)
			}
		}
	}
	return names
}
