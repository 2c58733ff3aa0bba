package differential

import (
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/proxy"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// upstream is kube-proxy's brain: for each family the parts of pkg/proxy that a proxier has, and what it learns about
// its node. The allowed departures normalise its input and its answer.
type upstream struct {
	setup    setup
	allowed  departures
	watches  *informers
	node     *upstreamNode
	families []*upstreamFamily
	fullSync bool // the next sync looks at every service
	// normalised are the slices that departures changed for upstream.
	normalised map[key]bool
	before     answer
	failure    string
}

// upstreamFamily is what a proxier has for its family.
type upstreamFamily struct {
	family           corev1.IPFamily
	serviceChanges   *proxy.ServiceChangeTracker
	endpointsChanges *proxy.EndpointsChangeTracker
	svcPortMap       proxy.ServicePortMap
	endpointsMap     proxy.EndpointsMap
	// The following fields are of one wave. triggers are the trigger times that endpointsChanges returned. vague has
	// services whose times need not be reported, mayTell the times that may be reported all the same: see remember.
	triggers map[types.NamespacedName][]time.Time
	vague    map[types.NamespacedName]bool
	raw      map[types.NamespacedName][]time.Time
	mayTell  []time.Time
	// told are the slices that were given to endpointsChanges, by service and name, as departures normalised them.
	told map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice
}

func newUpstream(s setup, allowed departures) *upstream {
	u := &upstream{setup: s, allowed: allowed, watches: newInformers(), fullSync: true,
		node: newUpstreamNode(s.Detector == detectNodeCIDR), normalised: map[key]bool{}}
	u.node.onTopologyChange = func() { u.fullSync = true }
	for _, f := range s.families() {
		family := &upstreamFamily{
			family:           f,
			serviceChanges:   proxy.NewServiceChangeTracker(f, nil, nil),
			endpointsChanges: proxy.NewEndpointsChangeTracker(f, nodeName, nil, nil),
			svcPortMap:       proxy.ServicePortMap{},
			endpointsMap:     proxy.EndpointsMap{},
			told:             map[types.NamespacedName]map[string]*discoveryv1.EndpointSlice{},
		}
		family.nextWave()
		u.families = append(u.families, family)
	}
	return u
}

// take hands an event to the trackers, as kube-proxy's handlers do.
func (u *upstream) take(e event) {
	defer u.recover()
	n, ok := u.watches.take(e)
	if !ok {
		return
	}
	original := n.new
	told := u.allowed.notifications(n)
	for _, n := range told {
		switch v := n.event().object.(type) {
		case *corev1.Service:
			for _, f := range u.families {
				f.serviceChanges.Update(typed[*corev1.Service](n.old), typed[*corev1.Service](n.new))
			}
		case *discoveryv1.EndpointSlice:
			partly := n.new != nil && n.new != original
			normalised := partly || u.normalised[keyOf(v)]
			u.normalised[keyOf(v)] = partly
			for _, f := range u.families {
				f.endpointsChanges.EndpointSliceUpdate(v, n.new == nil)
				f.remember(v, n.new == nil, len(told) > 1, normalised)
			}
		case *corev1.Node:
			u.node.take(n)
		}
	}
}

func (u *upstream) recover() {
	if r := recover(); r != nil {
		u.failure = fmt.Sprint("panic: ", r)
	}
}

// typed is a type assertion that keeps nil.
func typed[T object](o object) T {
	v, _ := o.(T)
	return v
}

// remember keeps the slices that endpointsChanges knows: it ignores those of another family.
//
// It notes the trigger times that localstate need not report like upstream: of a changed slice in which upstream itself
// sees the same endpoints (S14), of the old service of a slice that moves, which is a deletion for upstream (S13), and
// of a slice that was normalised for upstream, now or before.
func (f *upstreamFamily) remember(s *discoveryv1.EndpointSlice, removed, moves, normalised bool) {
	if string(s.AddressType) != string(f.family) {
		return
	}
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	if removed {
		if delete(f.told[name], s.Name); moves {
			f.vague[name] = true
			f.mayTell = append(f.mayTell, f.raw[name]...)
		}
		return
	}
	if t, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil {
		f.raw[name] = append(f.raw[name], t)
		if normalised {
			f.mayTell = append(f.mayTell, t)
		}
		if old := f.told[name][s.Name]; old != nil && reflect.DeepEqual(f.alone(old), f.alone(s)) {
			f.vague[name] = true
		}
	}
	if f.told[name] == nil {
		f.told[name] = map[string]*discoveryv1.EndpointSlice{}
	}
	f.told[name][s.Name] = s
}

// nextWave forgets what belongs to one wave.
func (f *upstreamFamily) nextWave() {
	f.vague, f.raw, f.mayTell = map[types.NamespacedName]bool{}, map[types.NamespacedName][]time.Time{}, nil
}

// sync applies the changes, as the beginning of syncProxyRules does, and returns the answer.
func (u *upstream) sync() (a answer) {
	if u.failure == "" {
		func() {
			defer u.recover()
			a = u.answer()
		}()
	}
	if u.failure != "" {
		return answer{failure: u.failure}
	}
	for _, f := range u.families {
		u.addTriggers(f, &a)
		f.nextWave()
	}
	a.changed = u.allowed.changed(a.changed, sortedNames(a.changedSince(u.before)))
	u.before = a
	return a
}

// addTriggers adds the trigger times of a family: all of them, and those of services whose answer changed.
func (u *upstream) addTriggers(f *upstreamFamily, a *answer) {
	family := familyOf(f.family)
	for name, times := range f.triggers {
		must := !f.vague[name] && a.differsIn(familyKey{serviceName(name), family}, u.before)
		for _, t := range times {
			a.triggers[family][t] = true
			if must {
				a.mustTrigger[family][t] = true
			}
		}
	}
	for _, t := range f.mayTell {
		a.triggers[family][t] = true
	}
}

func (u *upstream) answer() answer {
	a := answer{ports: map[portKey]portAnswer{}, health: map[familyKey]healthAnswer{}, noLocal: map[string]int{},
		triggers: map[model.Family]map[time.Time]bool{}, mustTrigger: map[model.Family]map[time.Time]bool{}}
	a.node = u.allowed.node(u.node)
	changed := map[model.ServiceName]bool{}
	for _, f := range u.families {
		services := f.svcPortMap.Update(f.serviceChanges)
		endpoints := f.endpointsMap.Update(f.endpointsChanges)
		f.triggers = endpoints.LastChangeTriggerTimes
		a.triggers[familyOf(f.family)], a.mustTrigger[familyOf(f.family)] = map[time.Time]bool{}, map[time.Time]bool{}
		for name := range services.UpdatedServices.Union(endpoints.UpdatedServices) {
			changed[serviceName(name)] = true
		}
		if u.fullSync {
			for name := range f.svcPortMap {
				changed[serviceName(name.NamespacedName)] = true
			}
		}
		u.familyAnswer(f, &a)
	}
	u.fullSync = false
	a.changed = sortedNames(changed)
	return a
}

// familyAnswer reads for each service port what syncProxyRules reads, and adds what it and its backends derive from
// that.
func (u *upstream) familyAnswer(f *upstreamFamily, a *answer) {
	family := familyOf(f.family)
	all, labels := u.allowed.endpoints(f), u.allowed.topologyLabels(u.node)
	for name, info := range f.svcPortMap {
		k := portKey{model.PortName{Service: serviceName(name.NamespacedName), Port: name.Port,
			Protocol: protocolOf(name.Protocol)}, family}
		list := all[name]
		cluster, local, _, hasAny := proxy.CategorizeEndpoints(list, info, nodeName, labels)
		p := portAnswer{
			ClusterIP: addrOf(info.ClusterIP()), Port: uint16(info.Port()), NodePort: uint16(info.NodePort()),
			ExternalIPs: addrsOf(info.ExternalIPs()), LoadBalancerIPs: addrsOf(info.LoadBalancerVIPs()),
			SourceRanges:         u.sourceRanges(info, family),
			InternalPolicyLocal:  info.InternalPolicyLocal(),
			ExternalPolicyLocal:  info.ExternalPolicyLocal(),
			ExternallyAccessible: info.ExternallyAccessible(),
			UsesClusterEndpoints: info.UsesClusterEndpoints(),
			UsesLocalEndpoints:   info.UsesLocalEndpoints(),
			HasAnyEndpoints:      hasAny,
			ClusterEndpoints:     endpointsOf(cluster),
			LocalEndpoints:       endpointsOf(local),
		}
		if info.SessionAffinityType() == corev1.ServiceAffinityClientIP {
			p.AffinityTimeout = time.Duration(info.StickyMaxAgeSeconds()) * time.Second
		}
		if name.Protocol == corev1.ProtocolUDP {
			p.ServingUDP = endpointsOf(slices.DeleteFunc(slices.Clone(list),
				func(e proxy.Endpoint) bool { return !e.IsServing() }))
		}
		p.setRoutes(u.setup.MasqueradeAll, u.detects(family))
		a.ports[k] = p
		u.countNoLocal(a.noLocal, f.family, info, local, hasAny)
	}
	counts := all.LocalReadyEndpoints()
	for name, port := range f.svcPortMap.HealthCheckNodePorts() {
		a.health[familyKey{serviceName(name), family}] = healthAnswer{port, counts[name]}
	}
}

// setRoutes adds what the nftables and iptables backends derive from the answer so far: the chain for each kind of
// traffic, whether it is marked for masquerading, and the verdict of the filter without endpoints.
func (p *portAnswer) setRoutes(masqueradeAll, detects bool) {
	cluster := func(m model.Masquerade) model.Route {
		return model.Route{Endpoints: model.ClusterSet, Masquerade: m, Empty: model.Reject}
	}
	local := func(m model.Masquerade) model.Route {
		r := model.Route{Endpoints: model.LocalSet, Masquerade: m, Empty: model.Reject}
		if p.HasAnyEndpoints {
			r.Empty = model.Drop
		}
		return r
	}
	masquerade := model.MasqueradeNever
	switch {
	case masqueradeAll:
		masquerade = model.MasqueradeAlways
	case detects:
		masquerade = model.MasqueradeUnlessLocalPod
	}
	p.ClusterIPRoute = cluster(masquerade)
	if p.InternalPolicyLocal {
		p.ClusterIPRoute = local(masquerade)
	}
	switch {
	case !p.ExternallyAccessible:
	case !p.ExternalPolicyLocal:
		p.External = cluster(model.MasqueradeAlways)
		p.FromPod, p.FromNode = p.External, p.External
	default:
		p.External = local(model.MasqueradeNever)
		p.FromPod = p.External
		if detects { // "short-circuit pod traffic"
			p.FromPod = cluster(model.MasqueradeNever)
		}
		p.FromNode = cluster(model.MasqueradeAlways) // "masquerade local traffic", "short-circuit local traffic"
	}
}

// countNoLocal counts what sync_proxy_rules_no_local_endpoints_total counts.
func (u *upstream) countNoLocal(counts map[string]int, f corev1.IPFamily, info proxy.ServicePort,
	local []proxy.Endpoint, hasAny bool) {
	if !hasAny || len(local) > 0 {
		return
	}
	if info.InternalPolicyLocal() {
		counts[string(f)+" internal"]++
	}
	if info.ExternalPolicyLocal() && u.allowed.countsExternal(info) {
		counts[string(f)+" external"]++
	}
}

// sourceRanges is the set that the backends allow: the ranges and, if they contain the node's address, the VIPs (S26).
func (u *upstream) sourceRanges(info proxy.ServicePort, f model.Family) []netip.Prefix {
	var list []netip.Prefix
	fromNode := false
	nodeIP := u.allowed.nodeIP(u.node, f)
	for _, cidr := range info.LoadBalancerSourceRanges() {
		list = append(list, prefixOf(cidr))
		fromNode = fromNode || nodeIP != nil && cidr.Contains(nodeIP)
	}
	if fromNode {
		for _, vip := range addrsOf(info.LoadBalancerVIPs()) {
			list = append(list, netip.PrefixFrom(vip, vip.BitLen()))
		}
	}
	return rangeSet(list)
}

// detects reports whether kube-proxy would have a local-traffic detector of the family (S30).
func (u *upstream) detects(f model.Family) bool {
	switch u.setup.Detector {
	case detectClusterCIDR4:
		return f == model.IPv4
	case detectBridge:
		return true
	case detectNodeCIDR:
		return slices.ContainsFunc(u.allowed.podCIDRs(u.node),
			func(cidr string) bool { return strings.Contains(cidr, ":") == (f == model.IPv6) })
	}
	return false
}

func externalIPsAllowed() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.AllowServiceExternalIPs)
}

func serviceName(n types.NamespacedName) model.ServiceName {
	return model.ServiceName{Namespace: n.Namespace, Name: n.Name}
}

func protocolOf(p corev1.Protocol) model.Protocol {
	protocol, _ := model.ParseProtocol(string(p))
	return protocol
}

// addrOf returns an address in its canonical form.
func addrOf(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}

func addrsOf(ips []net.IP) []netip.Addr {
	var list []netip.Addr
	for _, ip := range ips {
		list = append(list, addrOf(ip))
	}
	return sortedSet(list, netip.Addr.Compare)
}

// prefixOf returns a range in the form in which upstream writes it into rules.
func prefixOf(cidr *net.IPNet) netip.Prefix {
	prefix, _ := netip.ParsePrefix(cidr.String())
	return prefix.Masked()
}

func endpointsOf(list []proxy.Endpoint) []endpoint {
	var out []endpoint
	for _, e := range list {
		addr, _ := netip.ParseAddr(e.IP())
		out = append(out, endpoint{
			Target: netip.AddrPortFrom(addr, uint16(e.Port())),
			Local:  e.IsLocal(), Ready: e.IsReady(), Serving: e.IsServing(), Terminating: e.IsTerminating(),
		})
	}
	return sortEndpoints(out)
}
