package localstate

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Random objects choose from few names and addresses, so that they collide.

// event is one object that is added, changed or deleted.
type event struct {
	obj     metav1.Object
	deleted bool
}

// key identifies the object of an event.
func (e event) key() string {
	return fmt.Sprintf("%T %s/%s", e.obj, e.obj.GetNamespace(), e.obj.GetName())
}

func randomEvent(d testkit.Random) event {
	e := event{deleted: testkit.OneIn(d, 8)}
	switch d.IntN(20) {
	case 0, 1, 2, 3, 4, 5, 6:
		e.obj = randomService(d)
	case 7, 8:
		e.obj = randomNode(d)
	case 9:
		e.obj = randomServiceCIDR(d)
	default:
		e.obj = randomSlice(d)
	}
	return e
}

func randomService(d testkit.Random) *corev1.Service {
	obj := aService(testkit.Pick(d, "web", "web", "a"))
	if testkit.OneIn(d, 8) {
		obj.Namespace = "ns2"
	}
	switch d.IntN(20) {
	case 0, 1, 2, 3:
	case 4:
		clusterIPs("fd00::1")(obj)
	case 5:
		clusterIPs("fd00::1", "10.0.0.1")(obj)
	case 6:
		clusterIPs("None")(obj)
		obj.Spec.IPFamilies = testkit.Some(d, corev1.IPv4Protocol, corev1.IPv6Protocol)
	case 7:
		clusterIPs("bogus", "fd00::1")(obj)
	case 8:
		obj.Spec.IPFamilies, obj.Spec.ClusterIPs = nil, nil
	case 9:
		obj.Spec.ClusterIP = ""
	default:
		clusterIPs("10.0.0.1", "fd00::1")(obj)
	}
	obj.Spec.Ports = []corev1.ServicePort{tcp("http", 80)}
	if testkit.OneIn(d, 8) {
		obj.Spec.Ports = nil
	}
	obj.Spec.Ports = append(obj.Spec.Ports, testkit.Some(d, tcp("admin", 81), udp("http", 80), sctp("http", 80),
		corev1.ServicePort{Name: "x", Port: 82}, tcp("bad", 0))...)
	obj.Spec.Type = testkit.Pick(d, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort,
		corev1.ServiceTypeLoadBalancer, corev1.ServiceTypeLoadBalancer, "")
	for i := range obj.Spec.Ports {
		if obj.Spec.Type != corev1.ServiceTypeClusterIP && d.IntN(2) == 0 {
			obj.Spec.Ports[i].NodePort = int32(30000 + i)
		}
	}
	if testkit.OneIn(d, 8) {
		obj.Spec.Type, obj.Spec.ExternalName = corev1.ServiceTypeExternalName, testkit.Pick(d, "", "www.example.com")
	}
	if d.IntN(2) == 0 {
		externalLocal(obj)
	}
	if d.IntN(3) == 0 {
		internalLocal(obj)
	}
	obj.Spec.ExternalIPs = testkit.Some(d, "192.0.2.5", "2001:db8::5", "bogus", "192.0.2.4")
	for _, ip := range testkit.Some(d, "192.0.2.7", "2001:db8::7", "203.0.113.8") {
		obj.Status.LoadBalancer.Ingress = append(obj.Status.LoadBalancer.Ingress,
			corev1.LoadBalancerIngress{IP: ip, IPMode: testkit.Pick(d, nil, nil, ptr.To(corev1.LoadBalancerIPModeVIP),
				ptr.To(corev1.LoadBalancerIPModeProxy))})
	}
	obj.Spec.LoadBalancerSourceRanges = testkit.Some(d, "203.0.113.0/24", " 203.0.113.128/25", "2001:db8::/32",
		"198.51.100.0/24", "bogus")
	if testkit.OneIn(d, 8) {
		obj.Spec.LoadBalancerSourceRanges = append(obj.Spec.LoadBalancerSourceRanges,
			testkit.Pick(d, "0.0.0.0/0", "::/0"))
	}
	if !testkit.OneIn(d, 8) {
		obj.Spec.HealthCheckNodePort = 31000
	}
	if testkit.OneIn(d, 8) {
		metav1.SetMetaDataLabel(&obj.ObjectMeta, labelServiceProxyName, "cilium")
	}
	if testkit.OneIn(d, 2) {
		obj.CreationTimestamp = metav1.Unix(int64(testkit.Pick(d, 1, 2, 3)), 0)
	}
	if testkit.OneIn(d, 8) {
		obj.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	return obj
}

func randomSlice(d testkit.Random) *discoveryv1.EndpointSlice {
	obj := aSlice(testkit.Pick(d, "s1", "s2", "s3", "s4"), ofService(testkit.Pick(d, "web", "web", "web", "a")))
	if testkit.OneIn(d, 8) {
		obj.Namespace = "ns2"
	}
	switch d.IntN(24) {
	case 0:
		obj.Labels[discoveryv1.LabelServiceName] = ""
	case 1:
		obj.Labels[corev1.IsHeadlessService] = ""
	case 2:
		obj.AddressType = discoveryv1.AddressTypeFQDN
	case 3, 4, 5, 6, 7:
		obj.AddressType = discoveryv1.AddressTypeIPv6
	}
	obj.Ports = testkit.Some(d, slicePortObject("admin", "TCP", 8081), slicePortObject("http", "UDP", 8080),
		slicePortObject("http", "TCP", 9090),
		slicePortObject("http", "SCTP", 8080), discoveryv1.EndpointPort{Name: ptr.To("x"), Port: ptr.To[int32](8082)},
		discoveryv1.EndpointPort{Port: ptr.To[int32](1)},
		discoveryv1.EndpointPort{Name: ptr.To("http")}, slicePortObject("http", "TCP", 70000),
		slicePortObject("http", "TCP", 0))
	if !testkit.OneIn(d, 8) {
		obj.Ports = append(obj.Ports, slicePortObject("http", "TCP", 8080))
	}
	for range d.IntN(5) {
		ep(testkit.Pick(d, "10.1.0.1", "10.1.0.2", "10.1.0.3", "bogus"), randomConditions(d),
			testkit.Pick(d, local, onNode(other), onNode("")), randomHints(d))(obj)
	}
	if obj.AddressType == discoveryv1.AddressTypeIPv6 {
		for i := range obj.Endpoints {
			if addr, err := netip.ParseAddr(obj.Endpoints[i].Addresses[0]); err == nil && !testkit.OneIn(d, 8) {
				obj.Endpoints[i].Addresses = []string{fmt.Sprintf("fd01::%d", addr.As4()[3])}
			}
		}
	}
	return obj
}

func randomConditions(d testkit.Random) endpointOption {
	condition := func() *bool { return testkit.Pick(d, nil, ptr.To(true), ptr.To(false)) }
	c := discoveryv1.EndpointConditions{Ready: condition(), Serving: condition(), Terminating: condition()}
	if d.IntN(3) == 0 {
		c = discoveryv1.EndpointConditions{}
	}
	return func(e *endpointObject) { e.Conditions = c }
}

func randomHints(d testkit.Random) endpointOption {
	nodes, zones := testkit.Some(d, me, other), testkit.Some(d, "zone-a", "zone-b", "")
	if d.IntN(2) == 0 {
		nodes, zones = nil, []string{testkit.Pick(d, "zone-a", "zone-b")}
	}
	return func(e *endpointObject) {
		forNodes(nodes...)(e)
		forZones(zones...)(e)
		if len(nodes)+len(zones) == 0 {
			e.Hints = nil
		}
	}
}

func randomNode(d testkit.Random) *corev1.Node {
	obj := aNode(inZone(testkit.Pick(d, "", "zone-a", "zone-a", "zone-b")),
		internalIPs(testkit.Some(d, "203.0.113.9", "198.51.100.9", "2001:db8::9", "bogus")...),
		podCIDRs(testkit.Some(d, "10.1.1.0/24", "fd01::/64")...))
	if testkit.OneIn(d, 8) {
		obj.Spec.Taints = []corev1.Taint{{Key: taintToBeDeleted}}
	}
	if testkit.OneIn(d, 8) {
		obj.Name = other
	}
	return obj
}

func randomServiceCIDR(d testkit.Random) metav1.Object {
	return aServiceCIDR(testkit.Pick(d, "c1", "c2"), testkit.Some(d, "10.0.0.0/16", "fd00::/108", "bogus")...)
}

func randomOptions(d testkit.Random) options {
	opts := options{
		Options{NodeName: me, MasqueradeAll: testkit.OneIn(d, 8), DrainingEndpoints: testkit.OneIn(d, 3),
			Zone: testkit.Pick(d, "", "", "", "zone-b"), AllEndpoints: testkit.OneIn(d, 4),
			NoNodeHints: testkit.OneIn(d, 6), NoZoneHints: testkit.OneIn(d, 6),
			ExtraSets: testkit.Pick(d, 0, 0, 0, model.LocalSet, model.ClusterSet, model.ClusterSet|model.LocalSet)},
		ClusterOptions{NoExternalIPs: testkit.OneIn(d, 8), EndpointDetails: testkit.OneIn(d, 3),
			HeadlessServices: testkit.OneIn(d, 3), ExternalNameServices: testkit.OneIn(d, 3)},
	}
	if testkit.OneIn(d, 4) {
		opts.EndpointLimits = EndpointLimits{Service: 1 + d.IntN(12), Namespace: 1 + d.IntN(24)}
	}
	if testkit.OneIn(d, 4) {
		opts.AdmitService = func(s *corev1.Service) bool {
			if s.Spec.ExternalTrafficPolicy == "" { // most objects have one
				s.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
			}
			return s.Spec.Type != corev1.ServiceTypeNodePort
		}
	}
	if testkit.OneIn(d, 4) {
		opts.AdmitSlice = admitSome
	}
	switch d.IntN(5) {
	case 0:
		opts.DetectLocal.NodeCIDR = true
	case 1:
		opts.DetectLocal.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	case 2:
		opts.DetectLocal.Bridge = "cbr0"
	}
	switch d.IntN(8) {
	case 0:
		opts.Families = []model.Family{model.IPv4}
	case 1:
		opts.Families = []model.Family{model.IPv6}
	}
	return opts
}

// admitSome is an AdmitSlice that drops, changes and reassigns slices, depending only on their content.
func admitSome(s *discoveryv1.EndpointSlice) bool {
	switch len(s.Endpoints) {
	case 0:
		return false
	case 1:
		s.Labels[discoveryv1.LabelServiceName] = "a"
	case 2:
		s.Endpoints = s.Endpoints[1:]
	}
	s.Name = "x" // this has no effect
	return true
}

// history is a list of events; the events of each object are in order.
type history []event

// shuffled returns another history with the same events of each object in the same order, so that it ends in the same
// objects.
func (h history) shuffled(d testkit.Random) history {
	byObject := map[string][]event{}
	var left []string // an entry for each event
	for _, e := range h {
		byObject[e.key()] = append(byObject[e.key()], e)
		left = append(left, e.key())
	}
	slices.Sort(left) // the previous order does not matter
	var out history
	for len(left) > 0 {
		i := d.IntN(len(left))
		key := left[i]
		left = slices.Delete(left, i, i+1)
		out = append(out, byObject[key][0])
		byObject[key] = byObject[key][1:]
	}
	return out
}

// final returns the objects that exist at the end. A deleted node comes with its deletion, and one that has lost its
// podCIDRs with its earlier version: what was known about it stays.
func (h history) final() history {
	last, node, withCIDRs := map[string]event{}, map[string]event{}, map[string]event{}
	for _, e := range h {
		if n, isNode := e.obj.(*corev1.Node); isNode && !e.deleted {
			node[e.key()] = e
			if slices.ContainsFunc(append(n.Spec.PodCIDRs, n.Spec.PodCIDR), func(text string) bool {
				_, err := parsePrefix(text)
				return err == nil
			}) {
				withCIDRs[e.key()] = e
			}
		}
		last[e.key()] = e
	}
	var out history
	for _, key := range slices.Sorted(maps.Keys(last)) {
		e := last[key]
		_, isNode := e.obj.(*corev1.Node)
		if before, ok := withCIDRs[key]; ok {
			out = append(out, before)
		}
		if isNode && e.deleted {
			if known, ok := node[key]; ok {
				out = append(out, known)
			}
			out = append(out, e)
		} else if !e.deleted {
			out = append(out, e)
		}
	}
	return out
}
