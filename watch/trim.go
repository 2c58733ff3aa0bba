package watch

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kept is what trim keeps on request: the details that identify an endpoint for people, and all annotations of
// EndpointSlices.
type kept struct{ details, annotations, onlyNodes bool }

// trim drops the fields that do not affect service traffic, see [Clientset]. A Service keeps its labels and
// annotations, because backends with extensions read them.
func trim(obj any, keep kept) {
	m, ok := obj.(metav1.Object)
	if !ok {
		return
	}
	m.SetManagedFields(nil)
	m.SetOwnerReferences(nil)
	m.SetFinalizers(nil)
	switch o := obj.(type) {
	case *discoveryv1.EndpointSlice:
		if !keep.annotations {
			o.Annotations = onlyTriggerTime(o.Annotations)
		}
		for i := range o.Endpoints {
			ep := &o.Endpoints[i]
			ep.DeprecatedTopology = nil
			if !keep.details {
				ep.TargetRef, ep.Hostname = nil, nil
			}
		}
	case *corev1.Node:
		o.Status.Images = nil
		o.Status.VolumesInUse = nil
		o.Status.VolumesAttached = nil
		if keep.onlyNodes {
			o.Annotations, o.Status = nil, corev1.NodeStatus{Addresses: o.Status.Addresses}
		}
	}
}

// onlyTriggerTime drops all annotations except the time of the change that caused the slice's last update (S19).
func onlyTriggerTime(annotations map[string]string) map[string]string {
	t, ok := annotations[corev1.EndpointsLastChangeTriggerTime]
	switch {
	case !ok:
		return nil
	case len(annotations) == 1:
		return annotations
	}
	return map[string]string{corev1.EndpointsLastChangeTriggerTime: t}
}
