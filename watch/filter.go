package watch

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// labelServiceProxyName is the label of Services that name the proxy that serves them. The endpoint slice controller
// copies it to their EndpointSlices with a delay. Only the label of Services counts, so that a Service that moves here
// from another proxy has its endpoints at once, and slices that other programs write need not have the label.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// allServiceProxies is localstate.AllServiceProxies.
const allServiceProxies = "*"

// wants reports whether a run delivers an object: every object except other nodes' Nodes. nodeName is "" for no node,
// or AllNodes.
func wants(nodeName string, obj metav1.Object) bool {
	_, isNode := obj.(*corev1.Node)
	return !isNode || nodeName != "" && (obj.GetName() == nodeName || nodeName == AllNodes)
}

// validateServiceProxyName returns an error if a ServiceProxyName option is invalid.
func validateServiceProxyName(name string) error {
	if name == allServiceProxies {
		return nil
	}
	if problems := validation.IsValidLabelValue(name); len(problems) > 0 {
		return fmt.Errorf("ServiceProxyName %q: %w", name, errors.New(strings.Join(problems, "; ")))
	}
	return nil
}
