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

// kind is a kind of object.
type kind struct {
	gvk schema.GroupVersionKind
	// review: objects are answered, not stored.
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

// empty returns an empty object of the kind.
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

// isNamespaced reports whether objects of a kind are in namespaces. Only discovery needs it.
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

// selectable has the fields by which an object can be selected. It is not a map, because lists evaluate it for each
// object.
type selectable struct{ object }

var _ fields.Fields = selectable{}

// Has implements [fields.Fields].
func (s selectable) Has(field string) bool {
	_, ok := s.field(field)
	return ok
}

// Get implements [fields.Fields].
func (s selectable) Get(field string) string {
	value, _ := s.field(field)
	return value
}

func (s selectable) field(field string) (value string, ok bool) {
	switch field {
	case "metadata.name":
		return s.GetName(), true
	case "metadata.namespace":
		return s.GetNamespace(), true
	}
	switch o := s.object.(type) {
	case *corev1.Service:
		switch field {
		case "spec.clusterIP":
			return o.Spec.ClusterIP, true
		case "spec.type":
			return string(o.Spec.Type), true
		}
	case *corev1.Pod:
		if field == "spec.nodeName" {
			return o.Spec.NodeName, true
		}
	}
	return "", false
}
