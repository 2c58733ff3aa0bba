package localstate

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// TestChangedPartsOfALargeService: a change of one node's endpoints costs only the part of that node, and a change that
// affects all nodes is noticed.
func TestChangedPartsOfALargeService(t *testing.T) {
	slice := func(name string, options ...sliceOption) metav1.Object {
		return aSlice(name, append(options, ofService("web"))...)
	}
	begin := []metav1.Object{
		aService("web"),
		slice("s1", ep("10.1.0.1", onNode("n1")), ep("10.1.0.2", onNode("n2")), ep("10.1.0.3", onNode("n3"))),
		slice("s2", ep("10.1.0.11", onNode("n1")), ep("10.1.0.12", onNode("n2")), ep("10.1.0.13", onNode("n3"))),
		slice("s3", ep("10.1.0.21", onNode("n1"), conditions(false, true, true))),
	}
	one := func(options ...sliceOption) []metav1.Object { return []metav1.Object{slice("s3", options...)} }
	serviceWith := func(options ...serviceOption) []metav1.Object {
		return []metav1.Object{aService("web", options...)}
	}
	drains := conditions(false, true, true)
	balancer := []serviceOption{typed(corev1.ServiceTypeLoadBalancer), vips("198.51.100.1")}
	local := append(slices.Clip(balancer), externalLocal)
	checked := append(slices.Clip(local), healthCheck(30000))
	hinted := func(names ...string) []metav1.Object {
		return []metav1.Object{slice("s1"), slice("s2", ep("10.1.0.1", onNode("n1"), forNodes(names...)),
			ep("10.1.0.2", onNode("n2"), forNodes("n1"))), slice("s3", ep("10.1.0.3", onNode("n3"), forNodes("n3")))}
	}
	for name, c := range map[string]struct {
		before []metav1.Object // in addition
		change []metav1.Object
		nodes  string // whose parts are computed
		all    bool
	}{
		"nothing changes": {change: begin, nodes: "[]"},
		"only labels change": {
			change: serviceWith(func(o *corev1.Service) { o.Labels = map[string]string{"a": "b"} }),
			nodes:  "[]",
		},
		"one of a node is replaced by one of another": {change: one(ep("10.1.0.31", onNode("n2"))), nodes: "[n1 n2]"},
		"an endpoint moves":                           {change: one(ep("10.1.0.21", onNode("n3"), drains)), nodes: "[n1 n3]"},
		"a duplicate on another node": {
			change: one(ep("10.1.0.21", onNode("n1"), drains), ep("10.1.0.3", onNode("n4"))),
			nodes:  "[n3 n4]",
		},
		"a duplicate that wins": {
			before: one(ep("10.1.0.4", onNode("n4"))),
			change: []metav1.Object{slice("s0", ep("10.1.0.4", onNode("n5")))},
			nodes:  "[n4 n5]",
		},
		"the last of a node goes": {
			before: one(ep("10.1.0.4", onNode("n4"))),
			change: one(ep("10.1.0.4", onNode("n5"))),
			nodes:  "[n4 n5]",
		},
		"one has no node": {change: one(ep("10.1.0.21", onNode("n1"), drains), ep("10.1.0.31")), nodes: "[]"},
		"one comes before others": {
			before: one(ep("10.1.0.4", onNode("n4"))),
			change: one(ep("10.1.0.5", onNode("n5")), ep("10.1.0.4", onNode("n4"))),
			nodes:  "[n5]",
		},
		"a slice goes":                 {change: one(), nodes: "[n1]"},
		"other hints for nodes":        {before: hinted("n2"), change: hinted("n4", "n2", "n2"), nodes: "[n1 n2 n4]"},
		"not all have hints for nodes": {before: hinted("n2"), change: hinted(), all: true},
		"all have hints for nodes":     {before: hinted(), change: hinted("n2"), all: true},
		"internal traffic is local":    {change: serviceWith(internalLocal), all: true},
		"external traffic is local":    {before: serviceWith(balancer...), change: serviceWith(local...), all: true},
		"it gets a health check":       {before: serviceWith(local...), change: serviceWith(checked...), all: true},
		"its health check goes":        {before: serviceWith(checked...), change: serviceWith(local...), all: true},
		"a health check counts": {
			before: serviceWith(checked...),
			change: one(ep("10.1.0.21", onNode("n1"))),
			nodes:  "[n1]",
		},
		"a port more":   {change: serviceWith(ports(tcp("http", 80), tcp("web", 81))), all: true},
		"another port":  {change: serviceWith(ports(tcp("web", 81))), all: true},
		"a family more": {change: serviceWith(clusterIPs("10.0.0.1", "fd00::1")), all: true},
		"none is ready any more": {
			before: []metav1.Object{slice("s1"), slice("s2", ep("10.1.0.11", onNode("n1")),
				ep("10.1.0.12", onNode("n2"), drains))},
			change: []metav1.Object{slice("s2", ep("10.1.0.12", onNode("n2"), drains))},
			all:    true,
		},
		"the service goes": {change: serviceWith(func(o *corev1.Service) { o.Spec.ClusterIP = "" }), all: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, options{}, "n1")
			f.base.indexAbove = 2
			for _, o := range append(slices.Clone(begin), c.before...) {
				f.apply(event{obj: o})
			}
			f.of("n1")
			state := f.classes[f.trackers["n1"].Class()]
			for _, o := range c.change {
				_, err := state.Apply(o, false)
				require.NoError(t, err)
			}
			state.Flush(f.shared[f.trackers["n1"].Class()])
			web := model.ServiceName{Namespace: namespace, Name: "web"}
			everybody := func(string) bool { return true }
			parts, all := state.ChangedParts(web, everybody)
			want := state.NodeParts(web, everybody)
			assert.Equal(t, c.all, all)
			if all {
				assert.Len(t, parts, len(want))
			} else {
				assert.Equal(t, c.nodes, fmt.Sprint(slices.Sorted(maps.Keys(parts))))
			}
			for node, part := range parts {
				assert.True(t, part.Equal(want[node]), "node %s: %v\n%v", node, part, want[node])
			}
		})
	}
}

// When the parts of many nodes change, the endpoints and ports are looked at a few times in all, not once for each
// node.
func TestThePartsOfManyNodes(t *testing.T) {
	for name, slicesOf := range map[string]func(nodes int, prefix string) []metav1.Object{
		// Another slice has the same addresses: a part needs a look at all slices.
		"duplicates": func(nodes int, prefix string) (list []metav1.Object) {
			for n := range nodes / 10 {
				list = append(list, sliceOnNodes(fmt.Sprint("s", n), 10*n, 10*n+10, prefix, fmt.Sprint("own-", n)))
			}
			return list
		},
		// Two slices of many ports have the same addresses on the same nodes: a part needs a look at all ports.
		"ports": func(nodes int, prefix string) (list []metav1.Object) {
			ports := make([]string, nodes)
			for i := range ports {
				ports[i] = fmt.Sprint("p", i)
			}
			return []metav1.Object{sliceOnNodes("s0", 0, nodes, prefix, ports...),
				sliceOnNodes("s1", 0, nodes, prefix, append(ports, "more")...)}
		},
	} {
		t.Run(name, func(t *testing.T) {
			few, many := costOfParts(t, 200, slicesOf), costOfParts(t, 800, slicesOf)
			assert.Less(t, many, 8*few, "bytes, for four times as many nodes, and slices or ports")
		})
	}
}

// sliceOnNodes is a slice with the endpoints from one number to another, each on a node of its own.
func sliceOnNodes(name string, from, to int, prefix string, ports ...string) metav1.Object {
	list := []discoveryv1.EndpointPort{slicePortObject("http", "TCP", 8080)}
	for _, port := range ports {
		list = append(list, slicePortObject(port, "TCP", 81))
	}
	options := []sliceOption{slicePorts(list...)}
	for i := from; i < to; i++ {
		options = append(options, ep(fmt.Sprintf("10.1.%d.%d", i>>8, i&255), onNode(fmt.Sprint(prefix, i))))
	}
	return aSlice(name, options...)
}

// costOfParts moves the endpoints of a service with a health check to other nodes, and returns how many bytes
// ChangedParts allocates for the parts of all these nodes.
func costOfParts(t *testing.T, nodes int, slicesOf func(nodes int, prefix string) []metav1.Object) int {
	t.Helper()
	web := model.ServiceName{Namespace: namespace, Name: "web"}
	everybody := func(string) bool { return true }
	f := newFleet(t, options{}, "n1")
	f.base.indexAbove = 2
	f.apply(event{obj: aService("web", typed(corev1.ServiceTypeLoadBalancer), vips("198.51.100.1"), externalLocal,
		healthCheck(30000))})
	for _, o := range slicesOf(nodes, "n") {
		f.apply(event{obj: o})
		again := o.(*discoveryv1.EndpointSlice).DeepCopy()
		again.Name = "copy-" + again.Name
		f.apply(event{obj: again})
	}
	f.of("n1")
	state := f.classes[f.trackers["n1"].Class()]
	state.ChangedParts(web, everybody)
	for _, o := range slicesOf(nodes, "m") {
		_, err := state.Apply(o, false)
		require.NoError(t, err)
	}
	state.Flush(f.shared[f.trackers["n1"].Class()])
	var parts map[string]*NodePart
	var all bool
	w := testkit.Measure(func() { parts, all = state.ChangedParts(web, everybody) })
	require.False(t, all)
	require.Len(t, parts, 2*nodes)
	want := state.NodeParts(web, everybody)
	for node, part := range parts {
		assert.True(t, part.Equal(want[node]), "node %s: %v\n%v", node, part, want[node])
	}
	return w.Bytes
}

// Positions are removed and added like those of a set that is sorted in the end.
func TestPositionsMove(t *testing.T) {
	parents := []*indexedSlice{{&sliceIntake{name: "a"}}, {&sliceIntake{name: "b"}}, {&sliceIntake{name: "c"}}}
	for seed := range uint64(300) {
		d := testkit.Seeded(seed)
		some := func(n int) (list []position) {
			for range d.IntN(n) {
				list = append(list, position{testkit.Pick(d, parents...), int32(d.IntN(20))})
			}
			return list
		}
		list := distinct(some(40))
		for range 4 {
			gone, come := some(30), some(30)
			left := slices.DeleteFunc(slices.Clone(list), func(p position) bool { return slices.Contains(gone, p) })
			come = slices.DeleteFunc(come, func(p position) bool { return slices.Contains(left, p) })
			want := distinct(append(left, come...))
			list = insert(remove(list, distinct(gone)), distinct(come))
			assert.Equal(t, fmt.Sprint(want), fmt.Sprint(list), "seed %d", seed)
		}
	}
}
