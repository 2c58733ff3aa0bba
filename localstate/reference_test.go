package localstate

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// reference computes the node-local state in the plainest way that follows the rules: everything anew, with a loop for
// every question. It shares nothing with the package but the node (which has its own tests) and the model's types.
// Random objects contain only what it can read: no leading zeros, no ports that collide.
type reference struct {
	opts     options
	node     *model.Node
	services []*corev1.Service
	slices   []*discoveryv1.EndpointSlice // by name
	refused  map[model.PortName]bool      // ports without endpoints (S60)
}

func newReference(opts options, node *model.Node, objects history) *reference {
	r := &reference{opts: opts, node: node}
	for _, e := range objects {
		switch obj := e.obj.(type) {
		case *corev1.Service:
			r.services = append(r.services, obj)
		case *discoveryv1.EndpointSlice:
			if opts.AdmitSlice != nil {
				if obj = obj.DeepCopy(); !opts.AdmitSlice(obj) {
					continue
				}
				obj.Name = e.obj.GetName()
			}
			r.slices = append(r.slices, obj)
		}
	}
	slices.SortFunc(r.slices, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	r.refused = r.tooMany()
	return r
}

// tooMany implements S60.
func (r *reference) tooMany() map[model.PortName]bool {
	service, namespace := r.opts.EndpointLimits.Service, r.opts.EndpointLimits.Namespace
	if service == 0 {
		return nil // random services are far below the defaults
	}
	refused, left := map[model.PortName]bool{}, map[string]int{"ns": namespace, "ns2": namespace}
	age := func(s *corev1.Service) int64 {
		if s.CreationTimestamp.IsZero() {
			return 1000
		}
		return s.CreationTimestamp.Unix()
	}
	slices.SortFunc(r.services, func(a, b *corev1.Service) int {
		return cmp.Or(cmp.Compare(age(a), age(b)), strings.Compare(a.Name, b.Name))
	})
	for _, svc := range r.services {
		name := model.ServiceName{Namespace: svc.Namespace, Name: svc.Name}
		if len(r.service(svc)) == 0 || svc.Spec.Type == corev1.ServiceTypeExternalName {
			continue // not served, or without endpoints
		}
		var ports []model.PortName
		for _, port := range svc.Spec.Ports {
			if port.Port != 0 {
				ports = append(ports, portName(name, port))
			}
		}
		slices.SortFunc(ports, model.PortName.Compare)
		addresses := 0
		for _, slice := range r.slices {
			if slice.Namespace == svc.Namespace && slice.Labels["kubernetes.io/service-name"] == svc.Name && r.uses(slice) {
				addresses += len(slice.Endpoints)
			}
		}
		got := 0
		for _, port := range ports {
			if got+addresses > service || left[svc.Namespace]-addresses < 0 {
				refused[port] = true
				continue
			}
			got += addresses
			left[svc.Namespace] -= addresses
		}
	}
	return refused
}

// refusesAll reports whether a service has ports, and none of them gets endpoints.
func (r *reference) refusesAll(name model.ServiceName, ports []corev1.ServicePort) bool {
	any := false
	for _, port := range ports {
		if port.Port != 0 {
			if any = true; !r.refused[portName(name, port)] {
				return false
			}
		}
	}
	return any
}

// uses implements S1 and S13: whether a slice counts.
func (r *reference) uses(slice *discoveryv1.EndpointSlice) bool {
	_, headless := slice.Labels["service.kubernetes.io/headless"]
	return (!headless || r.opts.HeadlessServices) && slices.ContainsFunc(r.families(),
		func(f model.Family) bool { return f.String() == string(slice.AddressType) })
}

// lines returns the expected calls.
func (r *reference) lines() []string {
	var out []string
	for _, svc := range r.services {
		out = append(out, r.service(svc)...)
	}
	slices.Sort(out)
	return out
}

// lines returns what has been handed over, except for the node and the fields that are only passed through.
func (m *mirror) lines() []string {
	var out []string
	for _, s := range m.services {
		switch {
		case s.ExternalName != "":
			out = append(out, fmt.Sprintf("%v is %s", s.Name, s.ExternalName))
			continue
		case s.Headless:
			out = append(out, fmt.Sprintf("%v is headless", s.Name))
			continue
		}
		out = append(out, fmt.Sprintf("%v IPs %v external %v VIPs %v ranges %v", s.Name, s.ClusterIPs, s.ExternalIPs,
			s.LoadBalancerIPs, s.LoadBalancerSourceRanges))
		if s.HealthCheck != nil {
			out = append(out, fmt.Sprintf("%v health check %+v", s.Name, *s.HealthCheck))
		}
		for _, p := range s.Ports {
			for _, f := range model.Families() {
				if s.ClusterIP(f).IsValid() {
					out = append(out, fmt.Sprintf("%v %d %d %v: %v %v", s.PortName(p), p.Port, p.NodePort, f,
						*p.Routes.At(f), p.TooManyEndpoints))
				}
			}
		}
	}
	for _, e := range m.endpoints {
		out = append(out, fmt.Sprintf("%+v", *e))
	}
	slices.Sort(out)
	return out
}

func (r *reference) families() []model.Family {
	if len(r.opts.Families) > 0 {
		return r.opts.Families
	}
	return []model.Family{model.IPv4, model.IPv6}
}

// clusterIP implements S2 and S3.
func (r *reference) clusterIP(svc *corev1.Service, f model.Family) netip.Addr {
	text := ""
	if len(svc.Spec.IPFamilies) == 0 {
		text = svc.Spec.ClusterIP
	}
	for i, family := range svc.Spec.IPFamilies {
		if string(family) == f.String() && i < len(svc.Spec.ClusterIPs) {
			text = svc.Spec.ClusterIPs[i]
		}
	}
	if addr, err := netip.ParseAddr(text); err == nil && model.FamilyOf(addr) == f {
		return addr
	}
	return netip.Addr{}
}

func (r *reference) service(svc *corev1.Service) []string {
	if r.opts.AdmitService != nil {
		if svc = svc.DeepCopy(); !r.opts.AdmitService(svc) {
			return nil
		}
	}
	spec := &svc.Spec
	_, labelled := svc.Labels["service.kubernetes.io/service-proxy-name"]
	name := model.ServiceName{Namespace: svc.Namespace, Name: svc.Name}
	switch {
	case labelled: // S1
		return nil
	case spec.Type == corev1.ServiceTypeExternalName: // S2
		if r.opts.ExternalNameServices && spec.ExternalName != "" {
			return []string{fmt.Sprintf("%v is %s", name, spec.ExternalName)}
		}
		return nil
	case spec.ClusterIP == "None":
		if r.opts.HeadlessServices {
			return r.headless(name, spec)
		}
		return nil
	case spec.ClusterIP == "":
		return nil
	}
	ips := []netip.Addr{}
	for _, f := range r.families() {
		if ip := r.clusterIP(svc, f); ip.IsValid() {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil
	}
	if len(ips) == 2 && spec.IPFamilies[0] == corev1.IPv6Protocol {
		ips[0], ips[1] = ips[1], ips[0]
	}

	// S6, S7
	external, vips := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, text := range spec.ExternalIPs {
		if addr, err := netip.ParseAddr(text); err == nil && slices.Contains(r.families(), model.FamilyOf(addr)) &&
			r.clusterIP(svc, model.FamilyOf(addr)).IsValid() {
			external[addr] = true
		}
	}
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		addr := netip.MustParseAddr(ingress.IP)
		if (ingress.IPMode == nil || *ingress.IPMode == corev1.LoadBalancerIPModeVIP) &&
			slices.Contains(r.families(), model.FamilyOf(addr)) && r.clusterIP(svc, model.FamilyOf(addr)).IsValid() {
			vips[addr] = true
		}
	}
	ranges := []netip.Prefix{}
	for _, f := range r.families() {
		if r.clusterIP(svc, f).IsValid() {
			ranges = append(ranges, r.ranges(svc, f, vips)...)
		}
	}
	// S9
	externalLocal := spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal &&
		(spec.Type == corev1.ServiceTypeLoadBalancer || spec.Type == corev1.ServiceTypeNodePort ||
			len(spec.ExternalIPs) > 0)
	internalLocal := spec.InternalTrafficPolicy != nil &&
		*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal

	shown := external
	if r.opts.NoExternalIPs {
		shown = nil
	}
	slices.SortFunc(ranges, model.ComparePrefixes)
	out := []string{fmt.Sprintf("%v IPs %v external %v VIPs %v ranges %v", name, ips, sortedAddrs(shown),
		sortedAddrs(vips), ranges)}
	if spec.Type == corev1.ServiceTypeLoadBalancer && externalLocal && spec.HealthCheckNodePort != 0 {
		check := model.HealthCheck{NodePort: uint16(spec.HealthCheckNodePort)}
		for _, f := range r.families() {
			if !r.clusterIP(svc, f).IsValid() || r.refusesAll(name, spec.Ports) {
				continue
			}
			if f == model.IPv4 {
				check.LocalEndpoints.IPv4 = r.healthCheckCount(name, f)
			} else {
				check.LocalEndpoints.IPv6 = r.healthCheckCount(name, f)
			}
		}
		out = append(out, fmt.Sprintf("%v health check %+v", name, check))
	}
	for _, port := range spec.Ports {
		if port.Port == 0 {
			continue
		}
		for _, f := range r.families() {
			if !r.clusterIP(svc, f).IsValid() {
				continue
			}
			accessible := port.NodePort != 0
			for addr := range external {
				accessible = accessible || model.FamilyOf(addr) == f
			}
			for addr := range vips {
				accessible = accessible || model.FamilyOf(addr) == f
			}
			out = append(out, r.port(name, port, f, internalLocal, externalLocal, accessible)...)
		}
	}
	return out
}

// headless is for services of which only the ready endpoints matter.
func (r *reference) headless(name model.ServiceName, spec *corev1.ServiceSpec) []string {
	out := []string{fmt.Sprintf("%v is headless", name)}
	served := false
	for _, f := range r.families() {
		if len(spec.IPFamilies) > 0 && !slices.Contains(spec.IPFamilies, corev1.IPFamily(f.String())) {
			continue
		}
		served = true
		for _, port := range spec.Ports {
			if port.Port == 0 {
				continue
			}
			protocol := protocolOf(&port.Protocol)
			if r.refused[portName(name, port)] {
				continue
			}
			for _, x := range r.entries(name, port.Name, protocol, f) {
				x.Port = portName(name, port)
				if x.Ready {
					x.Sets = model.ClusterSet
				}
				if x.Ready || r.inNoSet(x, protocol) {
					out = append(out, fmt.Sprintf("%+v", x.Endpoint))
				}
			}
		}
	}
	if !served {
		return nil
	}
	return out
}

// inNoSet reports whether an endpoint that is in no set is passed on.
func (r *reference) inNoSet(x referenceEntry, protocol corev1.Protocol) bool {
	return protocol == corev1.ProtocolUDP && x.Serving ||
		r.opts.DrainingEndpoints && !x.Ready && x.Serving && x.Terminating || r.opts.AllEndpoints
}

func portName(svc model.ServiceName, port corev1.ServicePort) model.PortName {
	protocols := map[corev1.Protocol]model.Protocol{"TCP": model.TCP, "UDP": model.UDP, "SCTP": model.SCTP}
	return model.PortName{Service: svc, Port: port.Name, Protocol: protocols[protocolOf(&port.Protocol)]}
}

// ranges implements S8 and S26.
func (r *reference) ranges(svc *corev1.Service, f model.Family, vips map[netip.Addr]bool) []netip.Prefix {
	var ranges []netip.Prefix
	allow := func(p netip.Prefix) {
		for _, o := range ranges {
			if o.Overlaps(p) && o.Bits() <= p.Bits() {
				return
			}
		}
		ranges = slices.DeleteFunc(ranges, func(o netip.Prefix) bool { return p.Overlaps(o) })
		ranges = append(ranges, p)
	}
	for _, text := range svc.Spec.LoadBalancerSourceRanges {
		p, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil || model.FamilyOf(p.Addr()) != f {
			continue
		}
		if p.Bits() == 0 {
			return nil
		}
		allow(p)
	}
	for _, p := range slices.Clone(ranges) {
		if ip := r.node.IP(f); ip.IsValid() && p.Contains(ip) {
			for vip := range vips {
				if model.FamilyOf(vip) == f {
					allow(netip.PrefixFrom(vip, vip.BitLen()))
				}
			}
		}
	}
	return ranges
}

// referenceEntry is an endpoint of a slice, for one target.
type referenceEntry struct {
	model.Endpoint
	nodeHints, zoneHints []string
}

// entries implements S13, S15, S16 and S17: the winner for each target of a port.
func (r *reference) entries(svc model.ServiceName, port string, protocol corev1.Protocol,
	f model.Family) map[netip.AddrPort]referenceEntry {
	winners := map[netip.AddrPort]referenceEntry{}
	for _, slice := range r.slices {
		_, headless := slice.Labels["service.kubernetes.io/headless"]
		if headless && !r.opts.HeadlessServices || slice.Namespace != svc.Namespace ||
			slice.Labels["kubernetes.io/service-name"] != svc.Name || string(slice.AddressType) != f.String() {
			continue
		}
		own := map[netip.AddrPort]bool{} // the winners so far that are of this slice
		for _, p := range slice.Ports {
			if p.Name == nil || *p.Name != port || p.Port == nil || *p.Port < 1 || *p.Port > 65535 ||
				protocolOf(p.Protocol) != protocol {
				continue
			}
			for _, e := range slice.Endpoints {
				addr, err := netip.ParseAddr(e.Addresses[0])
				if err != nil || model.FamilyOf(addr) != f {
					continue
				}
				x := referenceEntry{Endpoint: model.Endpoint{Target: netip.AddrPortFrom(addr, uint16(*p.Port)),
					Ready: true, Serving: true}}
				if c := e.Conditions.Ready; c != nil {
					x.Ready = *c
				}
				if c := e.Conditions.Serving; c != nil {
					x.Serving = *c
				}
				if c := e.Conditions.Terminating; c != nil {
					x.Terminating = *c
				}
				if e.NodeName != nil {
					x.Node = *e.NodeName
				}
				x.Local = x.Node != "" && x.Node == r.opts.NodeName
				if e.Hints != nil {
					for _, h := range e.Hints.ForNodes {
						x.nodeHints = append(x.nodeHints, h.Name)
					}
					for _, h := range e.Hints.ForZones {
						x.zoneHints = append(x.zoneHints, h.Name)
					}
				}
				if r.opts.EndpointDetails {
					x.Details = model.NewDetails(model.EndpointDetails{NodeHints: x.nodeHints, ZoneHints: x.zoneHints})
				}
				none := func(name string) bool { return name == "" }
				x.nodeHints, x.zoneHints = slices.DeleteFunc(x.nodeHints, none), slices.DeleteFunc(x.zoneHints, none)
				w, exists := winners[x.Target]
				if !exists || x.worth() > w.worth() ||
					x.worth() == w.worth() && own[x.Target] && !x.Terminating {
					winners[x.Target], own[x.Target] = x, true
				}
			}
		}
	}
	return winners
}

// worth implements the order of S17.
func (x referenceEntry) worth() int {
	for i, is := range []bool{x.Ready && !x.Terminating, x.Ready, x.Serving && x.Terminating, !x.Terminating} {
		if is {
			return -i
		}
	}
	return -4
}

func protocolOf(p *corev1.Protocol) corev1.Protocol {
	if p == nil || *p == "" {
		return corev1.ProtocolTCP
	}
	return *p
}

// healthCheckCount implements S38.
func (r *reference) healthCheckCount(svc model.ServiceName, f model.Family) int {
	addrs := map[netip.Addr]bool{}
	for _, slice := range r.slices {
		for _, p := range slice.Ports {
			if p.Name == nil {
				continue
			}
			for target, x := range r.entries(svc, *p.Name, protocolOf(p.Protocol), f) {
				if x.Ready && x.Local {
					addrs[target.Addr()] = true
				}
			}
		}
	}
	return len(addrs)
}

// port implements S10, S21 to S23 and S25 to S28.
func (r *reference) port(svc model.ServiceName, port corev1.ServicePort, f model.Family, internalLocal, externalLocal,
	accessible bool) []string {
	protocol := protocolOf(&port.Protocol)
	name := portName(svc, port)
	var entries map[netip.AddrPort]referenceEntry
	if !r.refused[name] {
		entries = r.entries(svc, port.Name, protocol, f)
	}
	last := func(x referenceEntry) bool { return !x.Ready && x.Serving && x.Terminating }

	ready, usable, localReady := false, false, false
	allNode, allZone, thisNode, thisZone := true, true, false, false
	for _, x := range entries {
		usable = usable || x.Ready || last(x)
		if !x.Ready {
			continue
		}
		ready = true
		localReady = localReady || x.Local
		allNode, allZone = allNode && len(x.nodeHints) > 0, allZone && len(x.zoneHints) > 0
		thisNode = thisNode || slices.Contains(x.nodeHints, r.opts.NodeName)
		thisZone = thisZone || slices.Contains(x.zoneHints, r.node.Zone)
	}
	selected := func(x referenceEntry) bool {
		switch {
		case allNode && thisNode && !r.opts.NoNodeHints:
			return slices.Contains(x.nodeHints, r.opts.NodeName)
		case allZone && thisZone && !r.opts.NoZoneHints:
			return slices.Contains(x.zoneHints, r.node.Zone)
		}
		return true
	}
	usesCluster := !internalLocal || accessible || r.opts.ExtraSets.Has(model.ClusterSet)
	usesLocal := internalLocal || externalLocal && accessible || r.opts.ExtraSets.Has(model.LocalSet)

	routes := r.routes(internalLocal, externalLocal, accessible, usable, f)
	out := []string{fmt.Sprintf("%v %d %d %v: %v %v", name, port.Port, port.NodePort, f, routes, r.refused[name])}
	for _, x := range entries {
		x.Port = name
		if usesCluster && (x.Ready && selected(x) || !ready && last(x)) {
			x.Sets |= model.ClusterSet
		}
		if usesLocal && x.Local && (x.Ready || !localReady && last(x)) {
			x.Sets |= model.LocalSet
		}
		if x.Sets != 0 || r.inNoSet(x, protocol) {
			out = append(out, fmt.Sprintf("%+v", x.Endpoint))
		}
	}
	return out
}

func (r *reference) routes(internalLocal, externalLocal, accessible, usable bool, f model.Family) model.Routes {
	detects := r.opts.DetectLocal.Bridge != ""
	for _, p := range r.opts.DetectLocal.ClusterCIDRs {
		detects = detects || model.FamilyOf(p.Addr()) == f
	}
	for _, p := range r.node.LocalPods.CIDRs { // not PodCIDRs: known ones are kept when the Node loses them
		detects = detects || r.opts.DetectLocal.NodeCIDR && model.FamilyOf(p.Addr()) == f
	}
	empty := model.Drop
	if !usable {
		empty = model.Reject
	}
	cluster := func(m model.Masquerade) model.Route { return model.Route{Endpoints: model.ClusterSet, Masquerade: m} }
	local := func(m model.Masquerade) model.Route {
		return model.Route{Endpoints: model.LocalSet, Masquerade: m, Empty: empty}
	}
	masquerade := model.MasqueradeNever
	if r.opts.MasqueradeAll {
		masquerade = model.MasqueradeAlways
	} else if detects {
		masquerade = model.MasqueradeUnlessLocalPod
	}
	routes := model.Routes{ClusterIP: cluster(masquerade)}
	if internalLocal {
		routes.ClusterIP = local(masquerade)
	}
	if !accessible {
		return routes
	}
	routes.External, routes.ExternalFromPod, routes.ExternalFromNode = cluster(model.MasqueradeAlways),
		cluster(model.MasqueradeAlways), cluster(model.MasqueradeAlways)
	if externalLocal {
		routes.External = local(model.MasqueradeNever)
		routes.ExternalFromPod = routes.External
		if detects {
			routes.ExternalFromPod = cluster(model.MasqueradeNever)
		}
	}
	return routes
}

func sortedAddrs(set map[netip.Addr]bool) []netip.Addr {
	return slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
}
