package apiserver

import (
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
)

// kind is a kind of object that is served.
type kind struct {
	gvk schema.GroupVersionKind
	// review: it is not stored but answered.
	review bool
}

// knownKinds returns all kinds of client-go's scheme that have a stable version and a list, and the reviews.
func knownKinds() map[schema.GroupVersionResource]kind {
	stable := regexp.MustCompile(`^v[0-9]+$`)
	kinds := map[schema.GroupVersionResource]kind{}
	for gvk := range scheme.Scheme.AllKnownTypes() {
		review := strings.HasSuffix(gvk.Kind, "Review") && strings.HasPrefix(gvk.Group, "auth")
		if stable.MatchString(gvk.Version) && (review || scheme.Scheme.Recognizes(listOf(gvk))) {
			kinds[resourceOf(gvk)] = kind{gvk, review}
		}
	}
	return kinds
}

// empty returns an object with nothing but its type.
func (k kind) empty() object {
	o, err := scheme.Scheme.New(k.gvk)
	typed, ok := o.(object)
	if err != nil || !ok {
		return &metav1.PartialObjectMetadata{} // not one of knownKinds
	}
	typed.GetObjectKind().SetGroupVersionKind(k.gvk)
	return typed
}

func listOf(gvk schema.GroupVersionKind) schema.GroupVersionKind {
	return gvk.GroupVersion().WithKind(gvk.Kind + "List")
}

func resourceOf(gvk schema.GroupVersionKind) schema.GroupVersionResource {
	resource, _ := meta.UnsafeGuessKindToResource(gvk)
	return resource
}

// isNamespaced reports whether objects of a kind are in namespaces, for discovery. The paths of requests say it anyway.
func (k kind) isNamespaced() bool {
	switch k.gvk.Group {
	case "":
		return !slices.Contains([]string{"Node", "Namespace", "PersistentVolume", "ComponentStatus"}, k.gvk.Kind)
	case "networking.k8s.io":
		return !slices.Contains([]string{"ServiceCIDR", "IPAddress", "IngressClass"}, k.gvk.Kind)
	case "apps", "autoscaling", "batch", "coordination.k8s.io", "discovery.k8s.io", "events.k8s.io", "policy":
		return true
	case "authorization.k8s.io":
		return k.gvk.Kind == "LocalSubjectAccessReview"
	case "rbac.authorization.k8s.io":
		return !strings.HasPrefix(k.gvk.Kind, "Cluster")
	case "resource.k8s.io":
		return strings.HasPrefix(k.gvk.Kind, "ResourceClaim")
	case "storage.k8s.io":
		return k.gvk.Kind == "CSIStorageCapacity"
	}
	return false
}

// selectable returns the fields that objects like this one can be selected by.
func selectable(o object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName(), "metadata.namespace": o.GetNamespace()}
	switch o := o.(type) {
	case *corev1.Service:
		set["spec.clusterIP"], set["spec.type"] = o.Spec.ClusterIP, string(o.Spec.Type)
	case *corev1.Pod:
		set["spec.nodeName"] = o.Spec.NodeName
	}
	return set
}
