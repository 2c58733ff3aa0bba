package conformance

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Objects returns the clusters of the cases that consist of states and traffic: by the name of the case, its states in
// turn, each with all of its Node, ServiceCIDR, Services and EndpointSlices. They are the caller's. A program that takes
// objects of the API, rather than a sink, can be tried with them.
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
