package random

import (
	"reflect"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Shrink reduces a script while it still fails, with a limited number of calls of fails. It always keeps the last wave.
// Parts that cannot be left out at first are tried again after others have been removed.
func Shrink(sc Script, fails func(Script) bool, tries int) Script {
	for tries > 0 {
		smaller := false
		sc = shrinkOnce(sc, func(candidate Script) bool {
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
func shrinkOnce(sc Script, fails func(Script) bool) Script {
	try := func(smaller Script) bool {
		if reflect.DeepEqual(smaller, sc) || !fails(smaller) {
			return false
		}
		sc = smaller
		return true
	}
	// Waves: often the last one is enough; otherwise drop as many from the front as possible.
	for drop := len(sc.Steps) - 1; drop > 0; drop /= 2 {
		for len(sc.Steps) > drop && try(sc.withoutSteps(0, drop)) {
		}
	}
	for i := len(sc.Steps) - 2; i >= 0; i-- {
		try(sc.withoutSteps(i, i+1))
	}
	// Services: from all waves, otherwise from a single one.
	for _, name := range sc.serviceNames() {
		isIt := func(s cluster.Service) bool { return s.Name == name }
		if try(sc.Edit(func(s cluster.Service) (cluster.Service, bool) { return s, !isIt(s) })) {
			continue
		}
		for i, st := range sc.Steps {
			if slices.ContainsFunc(st.Services, isIt) {
				without := Script{sc.Setup, slices.Clone(sc.Steps)}
				without.Steps[i].Services = slices.DeleteFunc(slices.Clone(st.Services), isIt)
				try(without)
			}
		}
	}
	usual := sc
	usual.Setup.MasqueradeAll = false
	try(usual)
	for i := range sc.Steps {
		if sc.Steps[i].event != nothing {
			calm := Script{sc.Setup, slices.Clone(sc.Steps)}
			calm.Steps[i].event = nothing
			try(calm)
		}
	}
	for _, name := range sc.serviceNames() {
		for _, simplify := range simplifications {
			try(sc.Edit(func(s cluster.Service) (cluster.Service, bool) {
				if s.Name == name {
					s = simplify(s)
				}
				return s, true
			}))
		}
		for i := mostPorts - 1; i >= 0; i-- {
			try(sc.Edit(func(s cluster.Service) (cluster.Service, bool) {
				if s.Name == name && len(s.Ports) > 1 && i < len(s.Ports) {
					s.Ports = slices.Delete(slices.Clone(s.Ports), i, i+1)
				}
				return s, true
			}))
		}
		for _, p := range network.Hosts() {
			without := func(eps []cluster.Endpoint) []cluster.Endpoint {
				return slices.DeleteFunc(slices.Clone(eps), func(e cluster.Endpoint) bool { return e.At == p.Name })
			}
			try(sc.Edit(func(s cluster.Service) (cluster.Service, bool) {
				if s.Name == name {
					s.Endpoints = without(s.Endpoints)
					s.Ports = slices.Clone(s.Ports)
					for i := range s.Ports {
						if s.Ports[i].Endpoints != nil {
							s.Ports[i].Endpoints = without(s.Ports[i].Endpoints)
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
var simplifications = []func(cluster.Service) cluster.Service{
	func(s cluster.Service) cluster.Service { s.Ranges = nil; return s },
	func(s cluster.Service) cluster.Service { s.Affinity = 0; return s },
	func(s cluster.Service) cluster.Service { s.ExternalLocal = false; return s },
	func(s cluster.Service) cluster.Service { s.InternalLocal = false; return s },
	func(s cluster.Service) cluster.Service { s.NodePort = false; return s },
	func(s cluster.Service) cluster.Service { s.ExternalIP = false; return s },
	func(s cluster.Service) cluster.Service { s.VIP = false; return s },
	func(s cluster.Service) cluster.Service { s.ContestsExternalIP = false; return s },
	func(s cluster.Service) cluster.Service { s.ContestsVIP = false; return s },
	func(s cluster.Service) cluster.Service { s.ListsNode = false; return s },
}

func (sc Script) withoutSteps(from, to int) Script {
	return Script{sc.Setup, slices.Delete(slices.Clone(sc.Steps), from, to)}
}

// Edit changes or removes services in all waves.
func (sc Script) Edit(f func(cluster.Service) (cluster.Service, bool)) Script {
	edited := Script{Setup: sc.Setup}
	for _, st := range sc.Steps {
		next := Step{event: st.event}
		for _, s := range st.Services {
			if s, keep := f(s); keep {
				next.Services = append(next.Services, s)
			}
		}
		edited.Steps = append(edited.Steps, next)
	}
	return edited
}

func (sc Script) serviceNames() []string {
	var names []string
	for _, st := range sc.Steps {
		for _, s := range st.Services {
			if !slices.Contains(names, s.Name) {
				names = append(names, s.Name)
			}
		}
	}
	return names
}
