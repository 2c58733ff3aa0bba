package conntrack

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// targets are the serving endpoints of UDP ports in one family. What is described is noted, and applied when a Sync has
// succeeded: so a change costs no more than to copy the list of its port, however many others the service has.
type targets struct {
	applied map[model.PortName][]netip.AddrPort // sorted; a list is not written to
	changes map[model.PortName]map[netip.AddrPort]bool
}

func newTargets() targets {
	return targets{map[model.PortName][]netip.AddrPort{}, map[model.PortName]map[netip.AddrPort]bool{}}
}

// note notes whether an endpoint serves, and tells whether that may be a change.
func (t *targets) note(port model.PortName, target netip.AddrPort, serves bool) bool {
	changes := t.changes[port]
	if changes == nil {
		if !serves && t.applied[port] == nil {
			return false
		}
		changes = map[netip.AddrPort]bool{}
		t.changes[port] = changes
	}
	changes[target] = serves
	return true
}

// apply applies what was noted.
func (t *targets) apply() {
	for port, changes := range t.changes {
		if list := merge(t.applied[port], changes); len(list) > 0 {
			t.applied[port] = list
		} else {
			delete(t.applied, port)
		}
	}
	t.changes = emptied(t.changes)
}

// merge returns a sorted list with the targets that serve now and without those that do not: the list itself if that is
// no difference.
func merge(list []netip.AddrPort, changes map[netip.AddrPort]bool) []netip.AddrPort {
	var come, gone []netip.AddrPort
	for target, serves := range changes {
		switch _, found := slices.BinarySearchFunc(list, target, model.CompareTargets); {
		case serves && !found:
			come = append(come, target)
		case !serves && found:
			gone = append(gone, target)
		}
	}
	if len(come) == 0 && len(gone) == 0 {
		return list
	}
	slices.SortFunc(come, model.CompareTargets)
	slices.SortFunc(gone, model.CompareTargets)
	merged := make([]netip.AddrPort, 0, len(list)+len(come)-len(gone))
	for _, target := range list {
		if len(gone) > 0 && gone[0] == target {
			gone = gone[1:]
			continue
		}
		for len(come) > 0 && model.CompareTargets(come[0], target) < 0 {
			merged, come = append(merged, come[0]), come[1:]
		}
		merged = append(merged, target)
	}
	return append(merged, come...)
}

// sameTargets tells whether two lists are equal. Lists that did not change are one.
func sameTargets(a, b []netip.AddrPort) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// emptied returns an empty map, the same one if it is small: to clear a map costs as much as it ever held.
func emptied[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > 64 {
		return map[K]V{}
	}
	clear(m)
	return m
}
