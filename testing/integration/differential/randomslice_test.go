package differential

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/proxy/apis"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// slice makes a slice, or changes one that exists. Now and then it replaces one without a delete event.
func (g *generator) slice() object {
	name := g.sliceName()
	old, ok := g.objects[key{"EndpointSlice", name.Namespace, name.Name}].(*discoveryv1.EndpointSlice)
	if !ok || testkit.OneIn(g, 32) {
		return g.newSlice(name)
	}
	slice := old.DeepCopy()
	for range 1 + g.IntN(2) {
		testkit.Pick(g, g.sliceChanges()...)(slice)
	}
	if testkit.OneIn(g, 2) { // as its controller does
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: g.time()}
	}
	return g.finishSlice(slice)
}

func (g *generator) newSlice(name types.NamespacedName) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{}}
	s.UID, s.Namespace, s.Name = g.meta(name.Namespace, name.Name)
	if testkit.OneIn(g, 2) {
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: g.time()}
	}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: testkit.Pick(g, "a", "a", "a", "b")}
	s.AddressType = testkit.Pick(g, discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv4,
		discoveryv1.AddressTypeIPv6)
	if testkit.OneIn(g, 32) {
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
	s.Ports = []discoveryv1.EndpointPort{g.slicePort("http")}
	for range g.IntN(4) {
		s.Endpoints = append(s.Endpoints, g.endpoint(s.AddressType))
	}
	if testkit.OneIn(g, 2) {
		testkit.Pick(g, g.sliceChanges()...)(s)
	}
	return g.finishSlice(s)
}

func (g *generator) sliceChanges() []func(*discoveryv1.EndpointSlice) {
	// change changes one endpoint, if there is any.
	change := func(f func(*discoveryv1.Endpoint)) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) {
			if len(s.Endpoints) > 0 {
				f(&s.Endpoints[g.IntN(len(s.Endpoints))])
			}
		}
	}
	conditions := change(func(e *discoveryv1.Endpoint) { e.Conditions = g.conditions() })
	return []func(*discoveryv1.EndpointSlice){
		conditions, conditions,
		change(func(e *discoveryv1.Endpoint) { e.Hints = g.hints() }),
		change(func(e *discoveryv1.Endpoint) { e.NodeName = g.nodeOfEndpoint() }),
		func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, g.endpoint(s.AddressType)) },
		func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, g.endpoint(s.AddressType)) },
		func(s *discoveryv1.EndpointSlice) {
			if n := len(s.Endpoints); n > 0 {
				s.Endpoints = dropAt(s.Endpoints, g.IntN(n))
			}
		},
		func(s *discoveryv1.EndpointSlice) { slices.Reverse(s.Endpoints) },
		func(s *discoveryv1.EndpointSlice) { g.changeSlicePorts(s) },
		func(s *discoveryv1.EndpointSlice) { g.changeSliceMeta(s) },
		func(s *discoveryv1.EndpointSlice) {
			for i := range s.Endpoints { // as under trafficDistribution, all have a hint
				s.Endpoints[i].Hints = &discoveryv1.EndpointHints{
					ForZones: []discoveryv1.ForZone{{Name: testkit.Pick(g, "za", "zb")}}}
				if testkit.OneIn(g, 2) {
					s.Endpoints[i].Hints.ForNodes = []discoveryv1.ForNode{{Name: testkit.Pick(g, nodeName, "n2")}}
				}
			}
		},
	}
}

func (g *generator) changeSliceMeta(s *discoveryv1.EndpointSlice) {
	switch g.IntN(5) {
	case 0, 1:
		s.Annotations = map[string]string{"note": testkit.Pick(g, "x", "y")}
	case 2:
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: testkit.Pick(g, g.time(), g.time(),
			"2001-01-01T00:00:00Z", "bogus")}
	case 3:
		if s.Labels[discoveryv1.LabelServiceName] = testkit.Pick(g, "a", "b", "b", ""); testkit.OneIn(g, 32) {
			delete(s.Labels, discoveryv1.LabelServiceName)
		}
	case 4:
		s.Labels = g.label(s.Labels, corev1.IsHeadlessService, "")
		s.Labels = g.label(s.Labels, apis.LabelServiceProxyName, "cilium", "") // it says nothing
	}
}

// time returns a time after the start of the test, a different one at each call.
func (g *generator) time() string {
	g.made++
	return fmt.Sprintf("2099-01-01T00:%02d:%02d.5Z", g.made/60%60, g.made%60)
}

func (g *generator) slicePort(name string) discoveryv1.EndpointPort {
	p := discoveryv1.EndpointPort{
		Name:     ptr.To(name),
		Protocol: ptr.To(g.protocol()),
		Port:     ptr.To[int32](8080),
	}
	if g.IntN(4) == 3 {
		p.Port = testkit.Pick(g, ptr.To[int32](9090), ptr.To[int32](9090), ptr.To[int32](9090), ptr.To[int32](65535),
			nil, ptr.To[int32](0), ptr.To[int32](70000), ptr.To[int32](-1))
	}
	return p
}

// changeSlicePorts adds, drops or replaces a port. Names are unique in a slice.
func (g *generator) changeSlicePorts(s *discoveryv1.EndpointSlice) {
	name := testkit.Pick(g, "http", "http", "dns", "web", "")
	s.Ports = slices.DeleteFunc(slices.Clone(s.Ports),
		func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == name })
	if g.IntN(4) > 0 {
		s.Ports = append(s.Ports, g.slicePort(name))
	}
}

func (g *generator) endpoint(t discoveryv1.AddressType) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Conditions: g.conditions(), NodeName: g.nodeOfEndpoint(), Hints: g.hints()}
	switch t {
	case discoveryv1.AddressTypeIPv4:
		e.Addresses = []string{testkit.Pick(g, "10.1.0.1", "10.1.0.1", "10.1.0.2", "10.1.0.3", "010.001.000.002",
			"::ffff:10.1.0.1")}
		if testkit.OneIn(g, 8) {
			e.Addresses = append(e.Addresses, "10.1.0.9")
		}
	case discoveryv1.AddressTypeIPv6:
		e.Addresses = []string{testkit.Pick(g, "fd01::1", "fd01::1", "fd01::2", "fd01::3")}
	default:
		e.Addresses = []string{"pod.example.com"}
	}
	if testkit.OneIn(g, 2) {
		e.Zone = ptr.To("za")
	}
	return e
}

func (g *generator) nodeOfEndpoint() *string {
	return testkit.Pick(g, ptr.To(nodeName), ptr.To(nodeName), ptr.To("n2"), ptr.To("n3"), nil)
}

func (g *generator) conditions() discoveryv1.EndpointConditions {
	yes, no := ptr.To(true), ptr.To(false)
	switch g.IntN(8) {
	case 0, 1:
		return discoveryv1.EndpointConditions{Ready: yes, Serving: yes, Terminating: no}
	case 2:
		return discoveryv1.EndpointConditions{Ready: no, Serving: yes, Terminating: yes}
	case 3:
		return discoveryv1.EndpointConditions{Ready: no, Serving: no, Terminating: yes}
	case 4:
		return discoveryv1.EndpointConditions{Ready: no, Serving: no, Terminating: no}
	case 5:
		return discoveryv1.EndpointConditions{}
	}
	return discoveryv1.EndpointConditions{Ready: testkit.Pick(g, nil, yes, no),
		Serving: testkit.Pick(g, nil, yes, no), Terminating: testkit.Pick(g, nil, yes, no)}
}

func (g *generator) hints() *discoveryv1.EndpointHints {
	h := &discoveryv1.EndpointHints{}
	switch {
	case g.hinted && !testkit.OneIn(g, 32):
		h.ForZones = []discoveryv1.ForZone{{Name: testkit.Pick(g, "za", "zb")}}
		if g.IntN(3) > 0 {
			h.ForNodes = []discoveryv1.ForNode{{Name: testkit.Pick(g, nodeName, "n2", "n2")}}
		}
		return h
	case testkit.OneIn(g, 2):
		return nil
	}
	for _, zone := range testkit.Some(g, "za", "zb") {
		h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: zone})
	}
	if testkit.OneIn(g, 8) {
		h.ForZones = append(h.ForZones, discoveryv1.ForZone{})
	}
	for _, node := range testkit.Some(g, nodeName, "n2") {
		h.ForNodes = append(h.ForNodes, discoveryv1.ForNode{Name: node})
	}
	return h
}

// finishSlice makes a slice invalid, if that is asked for.
func (g *generator) finishSlice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	if !g.malformed {
		return s
	}
	switch g.IntN(6) {
	case 0:
		if len(s.Endpoints) > 0 {
			s.Endpoints[g.IntN(len(s.Endpoints))].Addresses = []string{testkit.Pick(g, "bogus", "fd01::1", "10.1.0.1",
				"")}
		}
	case 1:
		if len(s.Endpoints) > 0 {
			s.Endpoints[g.IntN(len(s.Endpoints))].Addresses = nil
		}
	case 2:
		if len(s.Ports) > 0 {
			s.Ports[g.IntN(len(s.Ports))].Protocol = nil
		}
	case 3:
		if len(s.Ports) > 0 {
			s.Ports[g.IntN(len(s.Ports))].Name = nil
		}
	}
	return s
}

// moveBetweenSlices moves an endpoint from one slice to another, in either order of the two events.
func (g *generator) moveBetweenSlices() []event {
	all := slices.DeleteFunc(of[*discoveryv1.EndpointSlice](g.objects),
		func(s *discoveryv1.EndpointSlice) bool { return len(s.Endpoints) == 0 })
	if len(all) == 0 {
		return nil
	}
	from := testkit.Pick(g, all...).DeepCopy()
	i := g.IntN(len(from.Endpoints))
	moved := from.Endpoints[i]
	from.Endpoints = dropAt(from.Endpoints, i)
	var to *discoveryv1.EndpointSlice
	for _, s := range of[*discoveryv1.EndpointSlice](g.objects) {
		if s.Name != from.Name && s.Namespace == from.Namespace && s.AddressType == from.AddressType {
			to = s.DeepCopy()
		}
	}
	if to == nil {
		to = from.DeepCopy()
		to.Name, to.Endpoints = "s4", nil
		if from.Name == "s4" {
			to.Name = "s3"
		}
		to.UID, _, _ = g.meta("", "")
	}
	to.Endpoints = append(to.Endpoints, moved)
	events := append(g.set(from), g.set(to)...)
	if testkit.OneIn(g, 2) {
		slices.Reverse(events)
	}
	return events
}

// node makes or changes this node's object; now and then that of another node.
func (g *generator) node() object {
	name := nodeName
	if testkit.OneIn(g, 8) {
		name = "n2"
	}
	old, ok := g.objects[key{"Node", "", name}].(*corev1.Node)
	if !ok || testkit.OneIn(g, 32) {
		return g.newNode(name)
	}
	n := old.DeepCopy()
	for range 1 + g.IntN(2) {
		g.changeNode(n)
	}
	return n
}

func (g *generator) newNode(name string) *corev1.Node {
	n := &corev1.Node{}
	n.UID, _, n.Name = g.meta("", name)
	for range 3 {
		g.changeNode(n)
	}
	return n
}

func (g *generator) changeNode(n *corev1.Node) {
	switch g.IntN(6) {
	case 0, 1:
		n.Labels = map[string]string{corev1.LabelTopologyZone: testkit.Pick(g, "za", "za", "zb", "")}
	case 2:
		if n.Labels = nil; testkit.OneIn(g, 2) {
			n.Labels = map[string]string{corev1.LabelHostname: n.Name}
		}
	case 3:
		n.Status.Addresses = nil
		for _, ip := range testkit.Some(g, "192.0.2.10", "2001:db8::10", "172.16.0.1", "192.000.2.010") {
			n.Status.Addresses = append(n.Status.Addresses,
				corev1.NodeAddress{Type: testkit.Pick(g, corev1.NodeInternalIP, corev1.NodeExternalIP), Address: ip})
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Name})
	case 4:
		if n.Spec.Taints = nil; testkit.OneIn(g, 2) {
			n.Spec.Taints = []corev1.Taint{{Key: testkit.Pick(g, "ToBeDeletedByClusterAutoscaler", "other"),
				Effect: corev1.TaintEffectNoSchedule}}
		}
	case 5:
		if len(n.Spec.PodCIDRs) == 0 { // once set, they stay
			n.Spec.PodCIDRs = testkit.Some(g, "10.1.0.0/24", "fd01::/64")
			n.Spec.PodCIDR = strings.Join(n.Spec.PodCIDRs[:min(1, len(n.Spec.PodCIDRs))], "")
		}
		if testkit.OneIn(g, 32) && n.DeletionTimestamp == nil {
			n.DeletionTimestamp = &metav1.Time{Time: metav1.Now().Time}
		}
	}
}
