package differential

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubernetes/pkg/proxy/apis"
)

// informers represents the watches of upstream's kube-proxy and their stores: an object that begins to match the
// selectors is added, and one that no longer does is deleted in its last matching form.
type informers struct{ store cluster }

// notification is what an informer's handler is called with. Without an old object it is OnAdd, without a new one
// OnDelete.
type notification struct{ old, new object }

func newInformers() *informers { return &informers{store: cluster{}} }

// take returns the notification for an event, if any.
func (i *informers) take(e event) (notification, bool) {
	k := keyOf(e.object)
	old, known := i.store[k]
	if e.deleted || !selected(e.object) {
		delete(i.store, k)
		return notification{old: old}, known
	}
	i.store[k] = e.object
	if !known {
		return notification{new: e.object}, true
	}
	return notification{old, e.object}, true
}

// event returns the notification as an event.
func (n notification) event() event {
	if n.new == nil {
		return event{n.old, true}
	}
	return event{n.new, false}
}

// selected reports whether an object matches the selectors that kube-proxy watches with (S1).
func selected(o object) bool {
	switch o := o.(type) {
	case *corev1.Service:
		return without(o.Labels, apis.LabelServiceProxyName) &&
			fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).
				Matches(fields.Set{"spec.clusterIP": o.Spec.ClusterIP})
	case *discoveryv1.EndpointSlice:
		return without(o.Labels, corev1.IsHeadlessService)
	}
	return o.GetName() == nodeName
}

func without(set labels.Set, name string) bool { return !set.Has(name) }
