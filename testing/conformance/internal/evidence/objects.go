package evidence

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// Objects returns Services, EndpointSlices, Nodes and ServiceCIDRs as YAML for kubectl apply, in the given order. It
// leaves out what the API server sets, except the status: it contains a load balancer's addresses, and kubectl apply
// ignores it. Objects does not change its arguments.
func Objects(objects []metav1.Object) (string, error) {
	var b strings.Builder
	for i, object := range objects {
		text, err := objectYAML(object)
		if err != nil {
			return "", err
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.WriteString(text)
	}
	return b.String(), nil
}

func objectYAML(object metav1.Object) (string, error) {
	name := object.GetName()
	if object.GetNamespace() != "" {
		name = object.GetNamespace() + "/" + name
	}
	kind, err := kindOf(object)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", kind.Kind, name, err)
	}
	fields["apiVersion"], fields["kind"] = kind.GroupVersion().String(), kind.Kind
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		for _, set := range []string{"creationTimestamp", "resourceVersion", "uid", "generation", "managedFields"} {
			delete(metadata, set)
		}
	}
	if status, ok := fields["status"].(map[string]any); ok {
		if balancer, ok := status["loadBalancer"].(map[string]any); ok && len(balancer) == 0 {
			delete(status, "loadBalancer")
		}
		if len(status) == 0 {
			delete(fields, "status")
		}
	}
	text, err := yaml.Marshal(fields)
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", kind.Kind, name, err)
	}
	return string(text), nil
}

func kindOf(object metav1.Object) (schema.GroupVersionKind, error) {
	switch object.(type) {
	case *corev1.Service:
		return corev1.SchemeGroupVersion.WithKind("Service"), nil
	case *corev1.Node:
		return corev1.SchemeGroupVersion.WithKind("Node"), nil
	case *discoveryv1.EndpointSlice:
		return discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), nil
	case *networkingv1.ServiceCIDR:
		return networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), nil
	}
	return schema.GroupVersionKind{}, fmt.Errorf("objects of type %T are not known", object)
}
