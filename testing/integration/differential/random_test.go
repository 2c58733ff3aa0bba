package differential

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// generator makes a script. It knows the objects that exist, so that its updates are what the API allows. There are few
// names, addresses and ports to choose from, so that objects collide.
type generator struct {
	testkit.Random
	malformed bool
	hinted    bool // usually every endpoint has hints, so that topology matters
	objects   cluster
	made      int // objects so far
}

// maxWaves bounds a script.
const maxWaves = 6

// randomScript makes a script. It contains malformed objects only if asked for.
func randomScript(d testkit.Random, malformed bool) script {
	g := &generator{Random: d, malformed: malformed, hinted: d.IntN(3) == 2, objects: cluster{}}
	sc := script{setup: setup{
		Detector:      testkit.Pick(d, detectNothing, detectNothing, detectClusterCIDR4, detectBridge, detectNodeCIDR),
		MasqueradeAll: testkit.OneIn(d, 8),
		Unfiltered:    testkit.OneIn(d, 2),
		Malformed:     malformed,
	}}
	switch d.IntN(10) {
	case 8:
		sc.setup.Families = []corev1.IPFamily{corev1.IPv4Protocol}
	case 9:
		sc.setup.Families = []corev1.IPFamily{corev1.IPv6Protocol}
	}
	for i := range 1 + d.IntN(maxWaves) {
		var w wave
		events := 1 + d.IntN(4)
		if i == 0 {
			events += 3 // the objects that exist when the watches begin
			if g.hinted {
				node := g.newNode(nodeName)
				node.Labels = map[string]string{corev1.LabelTopologyZone: testkit.Pick(d, "za", "zb")}
				w = g.set(node)
			}
			if g.IntN(4) > 0 { // so that the other events matter
				w = append(w, g.set(g.newService(types.NamespacedName{Namespace: "ns", Name: "a"}))...)
				w = append(w, g.set(g.newSlice(types.NamespacedName{Namespace: "ns", Name: "s1"}))...)
			}
		}
		if i > 0 && g.hinted && g.IntN(3) == 0 { // the node's zone alone
			node := g.newNode(nodeName)
			if old, ok := g.objects[keyOf(node)].(*corev1.Node); ok {
				node = old.DeepCopy()
			}
			node.Labels = map[string]string{corev1.LabelTopologyZone: testkit.Pick(d, "za", "zb", "")}
			w, events = g.set(node), 0
		}
		for range events {
			w = append(w, g.events()...)
		}
		sc.waves = append(sc.waves, w)
	}
	return sc
}

// events makes one change: usually to one object, now and then to two at once.
func (g *generator) events() []event {
	if g.hinted && testkit.OneIn(g, 8) {
		return g.set(g.node())
	}
	switch g.IntN(24) {
	case 0, 1, 2, 3, 4, 5:
		return g.set(g.service())
	case 6, 7:
		return g.set(g.node())
	case 8, 9:
		return g.remove(false)
	case 10:
		return g.remove(true)
	case 11:
		return g.moveBetweenSlices()
	case 12:
		return g.again()
	}
	return g.set(g.slice())
}

// set makes an event of an object that is new or changed, and remembers it.
func (g *generator) set(o object) []event {
	e := event{object: o}
	g.objects.apply(e)
	return []event{e}
}

// remove deletes an object, and may create it again at once. Now and then it deletes an unknown one.
func (g *generator) remove(anew bool) []event {
	all := []object{}
	for _, o := range of[object](g.objects) {
		if _, isNode := o.(*corev1.Node); !isNode || testkit.OneIn(g, 8) {
			all = append(all, o)
		}
	}
	if len(all) == 0 {
		return []event{{object: g.newSlice(g.sliceName()), deleted: true}}
	}
	e := event{object: testkit.Pick(g, all...), deleted: true}
	g.objects.apply(e)
	if !anew {
		return []event{e}
	}
	return append([]event{e}, g.set(g.another(e.object))...)
}

// another makes an object that shares only kind and name with the old one.
func (g *generator) another(old object) object {
	switch old := old.(type) {
	case *corev1.Service:
		return g.newService(types.NamespacedName{Namespace: old.Namespace, Name: old.Name})
	case *corev1.Node:
		return g.newNode(old.Name)
	}
	return g.newSlice(types.NamespacedName{Namespace: old.GetNamespace(), Name: old.GetName()})
}

// again sends an object unchanged, as a resync of an informer does.
func (g *generator) again() []event {
	all := of[object](g.objects)
	if len(all) == 0 {
		return nil
	}
	return []event{{object: testkit.Pick(g, all...)}}
}

// meta returns the metadata of a new object.
func (g *generator) meta(namespace, name string) (types.UID, string, string) {
	g.made++
	return types.UID(fmt.Sprintf("uid-%d", g.made)), namespace, name
}

// name returns the name of a service; most are the same.
func (g *generator) serviceName() types.NamespacedName {
	return types.NamespacedName{Namespace: g.namespace(), Name: testkit.Pick(g, "a", "a", "a", "b")}
}

func (g *generator) namespace() string {
	if testkit.OneIn(g, 32) {
		return "other"
	}
	return "ns"
}

func (g *generator) sliceName() types.NamespacedName {
	return types.NamespacedName{Namespace: g.namespace(), Name: testkit.Pick(g, "s1", "s1", "s2", "s2", "s3", "s4")}
}

// protocol returns a protocol, TCP as a rule, so that services and slices agree often.
func (g *generator) protocol() corev1.Protocol {
	return testkit.Pick(g, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolTCP,
		corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP, corev1.ProtocolSCTP)
}

// label sets or removes a label now and then.
func (g *generator) label(labels map[string]string, name string, values ...string) map[string]string {
	if !testkit.OneIn(g, 8) {
		return labels
	}
	if _, has := labels[name]; has {
		delete(labels, name)
		return labels
	}
	if labels == nil {
		labels = map[string]string{}
	}
	labels[name] = testkit.Pick(g, values...)
	return labels
}

// without returns a copy of a list without its i-th entry.
func dropAt[T any](list []T, i int) []T { return slices.Delete(slices.Clone(list), i, i+1) }
