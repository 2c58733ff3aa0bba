package watch

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// kind is one of the four kinds of object that sources deliver.
type kind uint8

const (
	services kind = iota
	endpointSlices
	nodes
	serviceCIDRs
)

// String returns the resource as kubectl and RBAC rules name it.
func (k kind) String() string {
	return [...]string{"services", "endpointslices.discovery.k8s.io", "nodes", "servicecidrs.networking.k8s.io"}[k]
}

// kindOf returns the kind of an object, and false if sources do not deliver it.
func kindOf(obj any) (kind, bool) {
	switch obj.(type) {
	case *corev1.Service:
		return services, true
	case *discoveryv1.EndpointSlice:
		return endpointSlices, true
	case *corev1.Node:
		return nodes, true
	case *networkingv1.ServiceCIDR:
		return serviceCIDRs, true
	}
	return 0, false
}

// key names an object.
type key struct {
	kind            kind
	namespace, name string
}

// String returns "services namespace/name".
func (k key) String() string {
	if k.namespace == "" {
		return k.kind.String() + " " + k.name
	}
	return k.kind.String() + " " + k.namespace + "/" + k.name
}

// deleted returns the deletion of the object, if only its name is known.
func (k key) deleted() Change {
	obj := newObject(k.kind)
	obj.SetNamespace(k.namespace)
	obj.SetName(k.name)
	return Change{Object: obj, Deleted: true}
}

// object is implemented by all the API types.
type object interface {
	metav1.Object
	runtime.Object
}

// newObject returns an empty object of the kind.
func newObject(k kind) object {
	switch k {
	case services:
		return &corev1.Service{}
	case endpointSlices:
		return &discoveryv1.EndpointSlice{}
	case nodes:
		return &corev1.Node{}
	default:
		return &networkingv1.ServiceCIDR{}
	}
}
