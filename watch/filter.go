package watch

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// labelServiceProxyName is the label of Services that name the proxy that serves them. The endpoint slice controller
// copies it to their EndpointSlices with a delay. Only the label of Services counts, so that a Service that is taken
// over from another proxy has its endpoints at once, and slices that other programs write need not have the label.
const labelServiceProxyName = "service.kubernetes.io/service-proxy-name"

// filter applies rule S1 for sources that get unfiltered objects; with NewClientset the API server does that.
type filter struct {
	nodeName         string
	serviceProxyName string
	headless         bool // headless services are wanted, too
}

// wants reports whether the object is delivered.
func (f filter) wants(obj any) bool {
	switch o := obj.(type) {
	case *corev1.Service:
		return (f.headless || o.Spec.ClusterIP != corev1.ClusterIPNone) && f.servedHere(o.Labels)
	case *discoveryv1.EndpointSlice:
		_, headless := o.Labels[corev1.IsHeadlessService]
		return f.headless || !headless
	case *corev1.Node:
		return wantsNode(f.nodeName, o.Name)
	case *networkingv1.ServiceCIDR:
		return true
	}
	return false
}

// wantsNode reports whether a run for one node, for none or for all of them delivers a Node.
func wantsNode(nodeName, name string) bool {
	return nodeName != "" && (name == nodeName || nodeName == AllNodes)
}

// servedHere reports whether this proxy serves a Service with these labels. If the proxy has no name, any value of the
// label, even the empty one, means that another proxy serves the Service.
func (f filter) servedHere(labels map[string]string) bool {
	name, labelled := labels[labelServiceProxyName]
	return labelled == (f.serviceProxyName != "") && name == f.serviceProxyName
}

// validateServiceProxyName returns an error if a ServiceProxyName option is invalid.
func validateServiceProxyName(name string) error {
	if problems := validation.IsValidLabelValue(name); len(problems) > 0 {
		return fmt.Errorf("ServiceProxyName %q: %w", name, errors.New(strings.Join(problems, "; ")))
	}
	return nil
}
