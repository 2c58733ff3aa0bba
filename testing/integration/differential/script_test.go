package differential

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// script is the input of one comparison: how both sides are set up, and what happens in the cluster.
type script struct {
	setup setup
	waves []wave
}

// setup is what does not change while a proxy runs.
type setup struct {
	// Families are "IPv4" and "IPv6", or one of them.
	Families []corev1.IPFamily `json:"families,omitempty"`
	// Detector is how local pods are detected (S30).
	Detector detector `json:"detector,omitempty"`
	// MasqueradeAll is S28.
	MasqueradeAll bool `json:"masqueradeAll,omitempty"`
	// Unfiltered: localstate sees all objects. Otherwise package watch filters them by S1.
	Unfiltered bool `json:"unfiltered,omitempty"`
	// Malformed: there may be objects that an API server rejects.
	Malformed bool `json:"malformed,omitempty"`
}

type detector string

const (
	detectNothing      detector = ""
	detectClusterCIDR4 detector = "cluster CIDR, IPv4 only"
	detectBridge       detector = "bridge"
	detectNodeCIDR     detector = "node CIDR"
)

func (s setup) families() []corev1.IPFamily {
	if len(s.Families) == 0 {
		return []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
	return s.Families
}

// wave is what happens between two syncs.
type wave []event

// event is an object that is created, changed or deleted. An existing object with a new UID was deleted and created
// again without a delete event.
type event struct {
	object  object
	deleted bool
}

type object interface {
	metav1.Object
	runtime.Object
}

// nodeName is the node that both sides work for.
const nodeName = "n1"

// key identifies an object.
type key struct{ kind, namespace, name string }

func keyOf(o object) key {
	return key{kindOf(o).Kind, o.GetNamespace(), o.GetName()}
}

func kindOf(o object) schema.GroupVersionKind {
	switch o.(type) {
	case *corev1.Service:
		return corev1.SchemeGroupVersion.WithKind("Service")
	case *discoveryv1.EndpointSlice:
		return discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice")
	}
	return corev1.SchemeGroupVersion.WithKind("Node")
}

func (k key) String() string { return fmt.Sprintf("%s %s/%s", k.kind, k.namespace, k.name) }

// keys returns the objects of a script, in the order in which they first occur.
func (sc script) keys() []key {
	var keys []key
	for _, w := range sc.waves {
		for _, e := range w {
			if k := keyOf(e.object); !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
	}
	return keys
}

// events counts the events of a script.
func (sc script) events() int {
	n := 0
	for _, w := range sc.waves {
		n += len(w)
	}
	return n
}

// cluster holds the objects that exist.
type cluster map[key]object

func (c cluster) apply(e event) {
	if e.deleted {
		delete(c, keyOf(e.object))
	} else {
		c[keyOf(e.object)] = e.object
	}
}

// of returns the objects of a kind, by name.
func of[T object](c cluster) []T {
	var list []T
	for _, k := range slices.SortedFunc(maps.Keys(c),
		func(a, b key) int { return compareText(a.String(), b.String()) }) {
		if o, ok := c[k].(T); ok {
			list = append(list, o)
		}
	}
	return list
}

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// text returns a setup in readable form.
func (s setup) text() string { return fmt.Sprintf("%+v", s) }
