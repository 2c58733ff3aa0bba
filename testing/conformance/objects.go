package conformance

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
)

// Objects returns the clusters of the cases that need only states and traffic: for each case name its successive
// states, each with its Node, ServiceCIDR, Services and EndpointSlices. The caller owns them. They serve to test a
// program that takes API objects rather than a sink.
func Objects() (map[string][][]metav1.Object, error) { return cases.Objects() }
