package differential

import (
	"maps"
	"net"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/kubernetes/pkg/proxy"
	utilnode "k8s.io/kubernetes/pkg/util/node"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// departure is one way in which localstate differs on purpose. It normalises upstream's input or, where that is not
// possible, upstream's answer. Everything else is still compared.
type departure struct {
	rule string // of docs/semantics.md
	name string // what localstate does
	// Malformed: it needs an object that an API server rejects.
	malformed bool

	// notification, service and slice normalise the input. They return their argument or a changed copy.
	notification func(notification) []notification
	service      func(*corev1.Service) *corev1.Service
	slice        func(*discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice
	// endpoints normalises what upstream has collected for a family.
	endpoints func(*upstreamFamily, proxy.EndpointsMap)
	// topologyLabels returns the node's; its argument are upstream's.
	topologyLabels func(n *upstreamNode, labels map[string]string) map[string]string
	// nodeIP returns the address that represents the node in source ranges; its argument is upstream's.
	nodeIP func(n *upstreamNode, f model.Family, ip net.IP) net.IP
	// podCIDRs returns those that count; its argument are the node's own.
	podCIDRs func(n *upstreamNode, list []string) []string
	// notEligible reports whether load balancers should send no new traffic here; its argument is upstream's answer.
	notEligible func(n *upstreamNode, is bool) bool
	// countsExternal reports whether a port with externalTrafficPolicy Local may count as one without local endpoints.
	countsExternal func(proxy.ServicePort) bool
	// changed returns the changed services, from upstream's own list and those whose answer differs.
	changed func(reported, differs []model.ServiceName) []model.ServiceName
}

// allDepartures is the table. Each entry has a case in TestDepartures that fails without it.
func allDepartures() departures {
	return departures{
		{
			rule: "S5", name: "an endpoint whose first address is none is skipped", malformed: true,
			slice: func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
				return withoutEndpoints(s, func(e discoveryv1.Endpoint) bool {
					return len(e.Addresses) > 0 &&
						string(netutils.IPFamilyOfString(e.Addresses[0])) != familyText(s.AddressType)
				})
			},
		},
		{
			rule: "S11", name: "affinity without a timeout takes the API's default", malformed: true,
			service: func(s *corev1.Service) *corev1.Service {
				c := s.Spec.SessionAffinityConfig
				if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP ||
					c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
					return s
				}
				s = s.DeepCopy()
				s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
					ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: ptr.To[int32](10800)}}
				return s
			},
		},
		{
			rule: "S11", name: "a service without a type is of the API's default type", malformed: true,
			service: func(s *corev1.Service) *corev1.Service {
				if s.Spec.Type != "" {
					return s
				}
				s = s.DeepCopy()
				s.Spec.Type = corev1.ServiceTypeClusterIP
				return s
			},
		},
		{
			rule: "S11", name: "a slice's port without a protocol is TCP", malformed: true,
			slice: func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
				return withPorts(s, func(p *discoveryv1.EndpointPort) bool {
					if p.Protocol == nil {
						p.Protocol = ptr.To(corev1.ProtocolTCP)
					}
					return true
				})
			},
		},
		{
			rule: "S13", name: "a slice that changes its service leaves the one that it had",
			notification: goesAndComes(func(old, slice *discoveryv1.EndpointSlice) bool {
				return old.Labels[discoveryv1.LabelServiceName] != slice.Labels[discoveryv1.LabelServiceName]
			}),
		},
		{
			rule: "S13", name: "a slice that is made anew in the other family leaves the one that it had",
			notification: goesAndComes(func(old, slice *discoveryv1.EndpointSlice) bool {
				return old.AddressType != slice.AddressType
			}),
		},
		{
			rule: "S12, S14", name: "only a service whose result is another one is news",
			changed: func(reported, differs []model.ServiceName) []model.ServiceName {
				for _, name := range differs {
					if !slices.Contains(reported, name) {
						return reported // upstream has missed it
					}
				}
				return differs
			},
		},
		{
			rule: "S15", name: "a slice's port whose number is out of range is skipped",
			slice: func(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
				return withPorts(s, func(p *discoveryv1.EndpointPort) bool {
					return p.Port == nil ||
						*p.Port >= 0 && *p.Port <= 65535
				})
			},
		},
		{
			rule: "S17", name: "of entries with the same target the most usable one counts",
			endpoints: preferUsable,
		},
		{
			rule: "S22", name: "a zone hint with an empty name is none",
			slice: withoutEmptyHints,
		},
		{
			rule: "S24", name: "a node whose object has gone keeps its zone",
			topologyLabels: func(n *upstreamNode, labels map[string]string) map[string]string {
				if n.before != nil {
					return n.before.Labels
				}
				return labels
			},
		},
		{
			rule: "S48", name: "a node whose object has gone keeps its addresses",
			nodeIP: func(n *upstreamNode, f model.Family, ip net.IP) net.IP {
				if n.before == nil {
					return ip
				}
				ips, _ := utilnode.GetNodeHostIPs(n.before)
				if kept := hostIP(ips, f); kept != nil {
					return kept
				}
				return ip
			},
		},
		{
			rule: "S48", name: "a node that has no address does not have the loopback address",
			nodeIP: func(n *upstreamNode, _ model.Family, ip net.IP) net.IP {
				if ip.IsLoopback() {
					return nil
				}
				return ip
			},
		},
		{
			rule: "S48", name: "podCIDRs that a node had count while it has none",
			podCIDRs: func(n *upstreamNode, list []string) []string {
				if len(list) == 0 {
					return n.podCIDRs
				}
				return list
			},
		},
		{
			rule: "S39a", name: "a node whose object was never there is eligible",
			notEligible: func(n *upstreamNode, is bool) bool { return is && n.seen },
		},
		{
			rule: "S25a", name: "a port without external addresses has no external traffic to lose",
			countsExternal: proxy.ServicePort.ExternallyAccessible,
		},
	}
}

// departures are those that are allowed.
type departures []departure

// without returns all but one.
func (d departures) without(name string) departures {
	return slices.DeleteFunc(slices.Clone(d), func(d departure) bool { return d.name == name })
}

// notifications normalises a notification.
func (d departures) notifications(n notification) []notification {
	list := []notification{n}
	for _, d := range d {
		if d.notification == nil {
			continue
		}
		var next []notification
		for _, n := range list {
			next = append(next, d.notification(n)...)
		}
		list = next
	}
	for i, n := range list {
		list[i] = notification{d.object(n.old), d.object(n.new)}
	}
	return list
}

func (d departures) object(o object) object {
	for _, d := range d {
		switch v := o.(type) {
		case *corev1.Service:
			if d.service != nil {
				o = d.service(v)
			}
		case *discoveryv1.EndpointSlice:
			if d.slice != nil {
				o = d.slice(v)
			}
		}
	}
	return o
}

// endpoints returns upstream's endpoints.
func (d departures) endpoints(f *upstreamFamily) proxy.EndpointsMap {
	normalised := proxy.EndpointsMap{}
	for name, list := range f.endpointsMap {
		normalised[name] = slices.Clone(list)
	}
	for _, d := range d {
		if d.endpoints != nil {
			d.endpoints(f, normalised)
		}
	}
	return normalised
}

func (d departures) node(n *upstreamNode) nodeAnswer {
	a := nodeAnswer{Zone: d.topologyLabels(n)[corev1.LabelTopologyZone], NotEligible: !n.health.NodeEligible(),
		IP4: addrOf(d.nodeIP(n, model.IPv4)), IP6: addrOf(d.nodeIP(n, model.IPv6))}
	for _, d := range d {
		if d.notEligible != nil {
			a.NotEligible = d.notEligible(n, a.NotEligible)
		}
	}
	return a
}

// topologyLabels returns the labels by which endpoints are selected.
func (d departures) topologyLabels(n *upstreamNode) map[string]string {
	labels := n.topologyLabels
	for _, d := range d {
		if d.topologyLabels != nil {
			labels = d.topologyLabels(n, labels)
		}
	}
	return labels
}

// podCIDRs returns the podCIDRs that count.
func (d departures) podCIDRs(n *upstreamNode) []string {
	list := n.manager.PodCIDRs()
	for _, d := range d {
		if d.podCIDRs != nil {
			list = d.podCIDRs(n, list)
		}
	}
	return list
}

func (d departures) nodeIP(n *upstreamNode, f model.Family) net.IP {
	ip := n.nodeIP(f)
	for _, d := range d {
		if d.nodeIP != nil {
			ip = d.nodeIP(n, f, ip)
		}
	}
	return ip
}

func (d departures) countsExternal(info proxy.ServicePort) bool {
	for _, d := range d {
		if d.countsExternal != nil && !d.countsExternal(info) {
			return false
		}
	}
	return true
}

func (d departures) changed(reported, differs []model.ServiceName) []model.ServiceName {
	for _, d := range d {
		if d.changed != nil {
			return d.changed(reported, differs)
		}
	}
	return reported
}

// goesAndComes splits the notification of a slice whose service or family changes into a deletion and an addition.
func goesAndComes(moves func(old, slice *discoveryv1.EndpointSlice) bool) func(notification) []notification {
	return func(n notification) []notification {
		old, slice := typed[*discoveryv1.EndpointSlice](n.old), typed[*discoveryv1.EndpointSlice](n.new)
		if old == nil || slice == nil || !moves(old, slice) {
			return []notification{n}
		}
		return []notification{{old: old}, {new: slice}}
	}
}

func familyText(t discoveryv1.AddressType) string {
	if t == discoveryv1.AddressTypeIPv6 {
		return string(netutils.IPv6)
	}
	return string(netutils.IPv4)
}

// withoutEndpoints returns a slice without some of its endpoints.
func withoutEndpoints(s *discoveryv1.EndpointSlice, drop func(discoveryv1.Endpoint) bool) *discoveryv1.EndpointSlice {
	if !slices.ContainsFunc(s.Endpoints, drop) {
		return s
	}
	s = s.DeepCopy()
	s.Endpoints = slices.DeleteFunc(s.Endpoints, drop)
	return s
}

// withPorts returns a slice with the ports that keep selects, as it changes them.
func withPorts(s *discoveryv1.EndpointSlice, keep func(*discoveryv1.EndpointPort) bool) *discoveryv1.EndpointSlice {
	var kept []discoveryv1.EndpointPort
	for _, p := range s.Ports {
		if keep(&p) {
			kept = append(kept, p)
		}
	}
	if len(kept) == len(s.Ports) && reflect.DeepEqual(kept, s.Ports) {
		return s
	}
	s = s.DeepCopy()
	s.Ports = kept
	return s
}

func withoutEmptyHints(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	empty := func(z discoveryv1.ForZone) bool { return z.Name == "" }
	if !slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		return e.Hints != nil && slices.ContainsFunc(e.Hints.ForZones, empty)
	}) {
		return s
	}
	s = s.DeepCopy()
	for _, e := range s.Endpoints {
		if e.Hints != nil {
			e.Hints.ForZones = slices.DeleteFunc(e.Hints.ForZones, empty)
		}
	}
	return s
}

// preferUsable is rule S17: of several entries with the same target, the most usable one counts, each judged as
// upstream judges it alone; among equals, that of the first slice, and within a slice upstream's choice. It applies
// only if upstream's own choice is one of these.
func preferUsable(f *upstreamFamily, all proxy.EndpointsMap) {
	type target struct {
		port     proxy.ServicePortName
		endpoint string
	}
	for _, told := range f.told {
		if !repeatsAnAddress(told) {
			continue
		}
		views := map[target][]proxy.Endpoint{}
		best := map[target]proxy.Endpoint{}
		for _, name := range slices.Sorted(maps.Keys(told)) {
			slice := told[name].DeepCopy()
			of := map[target]bool{} // the best are of this slice
			for _, e := range told[name].Endpoints {
				slice.Endpoints = []discoveryv1.Endpoint{e}
				for port, list := range f.alone(slice) {
					for _, view := range list {
						at := target{port, view.String()}
						views[at] = append(views[at], view)
						if b := best[at]; b == nil || rank(view) < rank(b) ||
							rank(view) == rank(b) && of[at] && !view.IsTerminating() {
							best[at], of[at] = view, true
						}
					}
				}
			}
		}
		for at, list := range views {
			for i, e := range all[at.port] {
				same := func(view proxy.Endpoint) bool { return reflect.DeepEqual(view, e) }
				if at.endpoint == e.String() && slices.ContainsFunc(list, same) {
					all[at.port][i] = best[at]
				}
			}
		}
	}
}

// repeatsAnAddress reports whether slices have an address twice.
func repeatsAnAddress(told map[string]*discoveryv1.EndpointSlice) bool {
	seen := map[string]bool{}
	for _, slice := range told {
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			a := netutils.ParseIPSloppy(e.Addresses[0]).String()
			if seen[a] {
				return true
			}
			seen[a] = true
		}
	}
	return false
}

func rank(e proxy.Endpoint) int {
	switch {
	case e.IsReady() && !e.IsTerminating():
		return 0
	case e.IsReady():
		return 1
	case e.IsServing() && e.IsTerminating():
		return 2
	case !e.IsTerminating():
		return 3
	}
	return 4
}

// alone is upstream's result for a slice without others.
func (f *upstreamFamily) alone(s *discoveryv1.EndpointSlice) proxy.EndpointsMap {
	changes := proxy.NewEndpointsChangeTracker(f.family, nodeName, nil, nil)
	changes.EndpointSliceUpdate(s, false)
	endpoints := proxy.EndpointsMap{}
	endpoints.Update(changes)
	return endpoints
}
