package cases

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
)

// Objects returns the clusters of the cases that need only states and traffic, see conformance.Objects.
func Objects() (map[string][][]metav1.Object, error) {
	clusters := map[string][][]metav1.Object{}
	for _, c := range trafficCases() {
		for _, st := range c.steps {
			objects, err := cluster.Objects(st.services, cluster.DualStack())
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			clusters[c.name] = append(clusters[c.name],
				slices.Concat(c.setup.Objects([]model.Family{model.IPv4, model.IPv6}), objects))
		}
	}
	return clusters, nil
}
