package conformance

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Objects returns the clusters of the cases that need only states and traffic: for each case name its successive
// states, each with its Node, ServiceCIDR, Services and EndpointSlices. The caller owns them. They serve to test a
// program that takes API objects rather than a sink.
func Objects() (map[string][][]metav1.Object, error) {
	clusters := map[string][][]metav1.Object{}
	for _, c := range trafficCases() {
		for _, st := range c.steps {
			objects, err := objectsOf(st.services, dualStack())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			clusters[c.name] = append(clusters[c.name],
				slices.Concat(c.setup.objects([]model.Family{model.IPv4, model.IPv6}), objects))
		}
	}
	return clusters, nil
}
