package preflight

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// ofSlices returns the differences in the treatment of EndpointSlices, including those where kube-proxy's choice is
// random.
func (m *move) ofSlices() (list []difference) {
	type place struct{ service, address string }
	type entry struct {
		slice *discoveryv1.EndpointSlice
		discoveryv1.Endpoint
	}
	seen := map[place][]entry{}
	told := map[place]bool{}
	for _, c := range m.objects {
		slice, ok := c.Object.(*discoveryv1.EndpointSlice)
		if !ok {
			continue
		}
		service := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
		emptyHint := false
		for _, e := range slice.Endpoints {
			emptyHint = emptyHint || e.Hints != nil && slices.Contains(e.Hints.ForZones, discoveryv1.ForZone{})
			for _, a := range e.Addresses[:min(1, len(e.Addresses))] {
				at := place{service, a}
				before := seen[at]
				seen[at] = append(before, entry{slice, e})
				if told[at] {
					continue
				}
				for _, b := range before {
					text := differ(b.slice == slice, b.Endpoint, e)
					if text == "" || !sharePort(b.slice, slice) {
						continue
					}
					told[at] = true
					list = append(list, difference{Object: service, Before: "endpoint " + a + " " + text,
						After: "the most usable one counts", Rule: "S17"})
					break
				}
			}
		}
		if emptyHint {
			list = append(list, difference{Object: "EndpointSlice " + slice.Namespace + "/" + slice.Name,
				Before: "a zone hint without a name counts", After: "it is ignored", Rule: "S22"})
		}
	}
	return list
}

// sharePort reports whether two slices have a port of the same name, number and protocol.
func sharePort(a, b *discoveryv1.EndpointSlice) bool {
	type port struct {
		name, protocol string
		number         int32
	}
	of := func(p discoveryv1.EndpointPort) (all port) {
		if p.Name != nil {
			all.name = *p.Name
		}
		if p.Protocol != nil && *p.Protocol != "TCP" {
			all.protocol = string(*p.Protocol)
		}
		if p.Port != nil {
			all.number = *p.Port
		}
		return all
	}
	return slices.ContainsFunc(a.Ports, func(p discoveryv1.EndpointPort) bool {
		return slices.ContainsFunc(b.Ports, func(q discoveryv1.EndpointPort) bool { return of(p) == of(q) })
	})
}

// differ says what kube-proxy does with two entries of one address, given in their order; "" if that makes no
// difference.
func differ(inOneSlice bool, earlier, later discoveryv1.Endpoint) string {
	switch {
	case sameConditions(earlier, later):
	case !inOneSlice:
		return "is in two slices with different conditions, and either may count"
	case hides(later, earlier):
		return "is in one slice twice, and the later entry counts, which gets no traffic"
	}
	return ""
}

// hides reports whether a later entry of a slice is unusable and, in kube-proxy, replaces an earlier one that is
// usable.
func hides(later, earlier discoveryv1.Endpoint) bool {
	x, y := later.Conditions, earlier.Conditions
	return !is(x.Ready, true) && !is(x.Terminating, false) &&
		(is(y.Ready, true) || is(y.Terminating, false) && is(y.Serving, true))
}

// is returns the value of a condition, or otherwise if it is not set.
func is(b *bool, otherwise bool) bool { return b == nil && otherwise || b != nil && *b }

// sameConditions reports whether two entries with the same address have the same conditions.
func sameConditions(a, b discoveryv1.Endpoint) bool {
	x, y := a.Conditions, b.Conditions
	return is(x.Ready, true) == is(y.Ready, true) && is(x.Terminating, false) == is(y.Terminating, false) &&
		is(x.Serving, true) == is(y.Serving, true)
}
