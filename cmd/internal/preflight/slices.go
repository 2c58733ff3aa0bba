package preflight

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// ofSlices returns the differences in the treatment of EndpointSlices, including those where kube-proxy's choice is
// random.
func (m *move) ofSlices() (list []difference) {
	type place struct {
		service model.ServiceName
		address netip.Addr
	}
	var contested []place // in the order in which they are found
	entries := map[place][]*entry{}
	served := map[model.ServiceName]portSet{}
	for _, c := range m.objects {
		slice, ok := c.Object.(*discoveryv1.EndpointSlice)
		if !ok || c.Deleted || !m.uses(slice) {
			continue
		}
		service := serviceOf(slice)
		if served[service] == nil {
			served[service] = portsOf(m.new.service(model.PortName{Service: service}))
		}
		numbers, emptyHint := served[service].of(slice), false
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			emptyHint = emptyHint || e.Hints != nil && slices.Contains(e.Hints.ForZones, discoveryv1.ForZone{})
			if len(e.Addresses) == 0 {
				continue
			}
			a, err := lenient.Addr(e.Addresses[0])
			if err != nil || model.FamilyOf(a) != familyOf(slice) {
				continue // a line of its own says that it is ignored
			}
			at := place{service, a}
			if len(entries[at]) == 1 {
				contested = append(contested, at)
			}
			entries[at] = append(entries[at], m.entry(slice, e, numbers))
		}
		if emptyHint {
			list = append(list, difference{Object: "EndpointSlice " + slice.Namespace + "/" + slice.Name,
				Before: "a zone hint without a name counts", After: "it is ignored", Rule: "S22", service: service})
		}
	}
	for _, at := range contested {
		if before, after := ofEntries(entries[at]); before != "" {
			list = append(list, difference{Object: at.service.String(), Before: fmt.Sprintf("endpoint %v %s", at.address,
				before), After: after, Rule: "S17", service: at.service})
		}
	}
	return list
}

func serviceOf(s *discoveryv1.EndpointSlice) model.ServiceName {
	return model.ServiceName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
}

func familyOf(s *discoveryv1.EndpointSlice) model.Family {
	if s.AddressType == discoveryv1.AddressTypeIPv6 {
		return model.IPv6
	}
	return model.IPv4
}

// uses reports whether both proxies use the endpoints of a slice (S1, S13).
func (m *move) uses(s *discoveryv1.EndpointSlice) bool {
	if _, headless := s.Labels[corev1.IsHeadlessService]; headless || s.AddressType == discoveryv1.AddressTypeFQDN {
		return false
	}
	f := familyOf(s)
	for _, p := range []*proxy{m.old, m.new} {
		of := p.snapshot.Service(serviceOf(s))
		if of == nil || !of.Service.ClusterIP(f).IsValid() || !slices.Contains(p.families, f) {
			return false
		}
	}
	return true
}

// servicePort is a port of a service, and the number that it has in a slice.
type servicePort struct {
	name     string
	protocol string
	number   int32
}

// portSet is a set of ports of a service.
type portSet map[servicePort]struct{}

// portsOf returns the ports of a service, without numbers.
func portsOf(s *model.Service) portSet {
	all := portSet{}
	for _, p := range s.Ports {
		all[servicePort{name: p.Name, protocol: p.Protocol.String()}] = struct{}{}
	}
	return all
}

// of returns those ports that a slice has endpoints for (S15).
func (all portSet) of(s *discoveryv1.EndpointSlice) portSet {
	found := portSet{}
	for _, p := range s.Ports {
		if p.Name == nil || p.Port == nil || *p.Port == 0 {
			continue
		}
		port := servicePort{name: *p.Name, protocol: "TCP"}
		if p.Protocol != nil {
			port.protocol = string(*p.Protocol)
		}
		if _, ok := all[port]; ok {
			port.number = *p.Port
			found[port] = struct{}{}
		}
	}
	return found
}

// entry is an endpoint in a slice.
type entry struct {
	slice       *discoveryv1.EndpointSlice
	ports       portSet
	rank        int // how usable it is, lower is better, as in package localstate (S17)
	terminating bool
	effect      effect
}

// effect is what an entry means for traffic on the node. Where entries of an address have the same one, it makes no
// difference which of them counts.
type effect struct {
	use                use
	local              bool
	nodeHint, zoneHint hint
}

// use says which traffic an endpoint gets (S21).
type use int

const (
	unusable   use = iota
	lastResort     // while no other endpoint is ready
	ready
)

// hint says whether an endpoint has topology hints of a kind (S22).
type hint int

const (
	noHint hint = iota
	hintElsewhere
	hintHere
)

func (m *move) entry(slice *discoveryv1.EndpointSlice, e *discoveryv1.Endpoint, p portSet) *entry {
	is := func(b *bool, otherwise bool) bool { return b == nil && otherwise || b != nil && *b } // S16
	c := e.Conditions
	isReady, serving, terminating := is(c.Ready, true), is(c.Serving, true), is(c.Terminating, false)
	x := &entry{slice: slice, ports: p, rank: 4, terminating: terminating}
	switch {
	case isReady:
		x.effect.use, x.rank = ready, 0
		if terminating {
			x.rank = 1
		}
	case serving && terminating:
		x.effect.use, x.rank = lastResort, 2
	case !terminating:
		x.rank = 3
	}
	if x.effect.use == unusable {
		return x // wherever it is
	}
	x.effect.local = e.NodeName != nil && *e.NodeName == m.node
	if isReady && e.Hints != nil {
		x.effect.nodeHint = hintOf(len(e.Hints.ForNodes) > 0,
			slices.Contains(e.Hints.ForNodes, discoveryv1.ForNode{Name: m.node}))
		x.effect.zoneHint = hintOf(len(e.Hints.ForZones) > 0,
			slices.Contains(e.Hints.ForZones, discoveryv1.ForZone{Name: m.new.snapshot.Node().Zone}))
	}
	return x
}

func hintOf(some, here bool) hint {
	switch {
	case here:
		return hintHere
	case some:
		return hintElsewhere
	}
	return noHint
}

// ofEntries says which entry of an address counts in kube-proxy and which one here, "" if that makes no difference.
func ofEntries(all []*entry) (before, after string) {
	if !slices.ContainsFunc(all, func(e *entry) bool { return e.effect != all[0].effect }) {
		return "", ""
	}
	done := portSet{}
	for _, e := range all {
		for p := range e.ports {
			if _, again := done[p]; again {
				continue
			}
			done[p] = struct{}{}
			same := slices.DeleteFunc(slices.Clone(all), func(e *entry) bool {
				_, has := e.ports[p]
				return !has
			})
			if b, a := contest(same); b != "" && (before == "" || b < before) {
				before, after = b, a
			}
		}
	}
	return before, after
}

// contest compares the entry of an ip:port that counts in kube-proxy with the one that counts here.
func contest(all []*entry) (before, after string) {
	if len(all) < 2 {
		return "", ""
	}
	kubeProxys, ours := inKubeProxy(all), inThisLibrary(all)
	first := kubeProxys[0]
	other := func(than *entry) func(*entry) bool { return func(e *entry) bool { return e.effect != than.effect } }
	if !slices.ContainsFunc(kubeProxys, other(ours)) {
		return "", ""
	}
	where, n := "two slices", len(inSlices(all))
	if n > 2 {
		where = fmt.Sprintf("%d slices", n)
	}
	if slices.ContainsFunc(kubeProxys, other(first)) {
		what, after := inWhat(kubeProxys)
		return fmt.Sprintf("is in %s with different %s, and %s may count", where, what,
			either(len(kubeProxys) > 2, "any of them", "either")), after
	}
	gets := either(first.effect.use == lastResort, "gets traffic only while no endpoint is ready", "gets no traffic")
	switch {
	case n > 1:
		before = fmt.Sprintf("is in %s, and an entry counts that %s", where, gets)
	case len(all) == 2:
		before = fmt.Sprintf("is in one slice twice, and the %s entry counts, which %s",
			either(first == all[1], "later", "earlier"), gets)
	default:
		before = fmt.Sprintf("is in one slice %d times, and an entry counts that %s", len(all), gets)
	}
	return before, "the most usable one counts"
}

// inWhat says in what entries differ that may count, and which of them counts here.
func inWhat(all []*entry) (what, after string) {
	for _, e := range all[1:] {
		switch x, y := e.effect, all[0].effect; {
		case x.use != y.use:
			return "conditions", "the most usable one counts"
		case x.local != y.local:
			what = "nodes"
		}
	}
	return cmp.Or(what, "hints"), "the one of the first slice counts, by name"
}

// inSlices returns the entries of each slice.
func inSlices(all []*entry) (list [][]*entry) {
	for i, e := range all {
		if i == 0 || e.slice != all[i-1].slice {
			list = append(list, nil)
		}
		list[len(list)-1] = append(list[len(list)-1], e)
	}
	return list
}

// inKubeProxy returns the entries of an ip:port that may count in kube-proxy. It goes through a slice in order, and
// through slices in any order, and an entry replaces an earlier one unless it is terminating (addEndpoints in its
// endpointslicecache.go).
func inKubeProxy(all []*entry) (list []*entry) {
	for _, of := range inSlices(all) {
		counts := of[0]
		for _, e := range of[1:] {
			if !e.terminating {
				counts = e
			}
		}
		list = append(list, counts)
	}
	if slices.ContainsFunc(list, func(e *entry) bool { return !e.terminating }) {
		list = slices.DeleteFunc(list, func(e *entry) bool { return e.terminating })
	}
	return list
}

// inThisLibrary returns the entry of an ip:port that counts in this library (S17).
func inThisLibrary(all []*entry) *entry {
	best := all[0]
	for _, e := range all[1:] {
		order := cmp.Or(cmp.Compare(e.rank, best.rank), cmp.Compare(e.slice.Name, best.slice.Name))
		if order < 0 || order == 0 && !e.terminating {
			best = e
		}
	}
	return best
}
