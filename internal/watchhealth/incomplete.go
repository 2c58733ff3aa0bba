package watchhealth

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IncompleteLists counts incomplete streamed lists, by resource.
type IncompleteLists struct{ *prometheus.CounterVec }

// NewIncompleteLists returns the metric PREFIXincomplete_lists_total.
func NewIncompleteLists(prefix string) IncompleteLists {
	return IncompleteLists{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "incomplete_lists_total",
		Help: "Streamed lists that did not complete, by resource",
	}, []string{"resource"})}
}

// Count counts an incomplete list of a kind of object.
func (l IncompleteLists) Count(kind metav1.Object) {
	l.WithLabelValues(resource(kind)).Inc()
}

// resource returns the resource of a kind of object.
func resource(kind metav1.Object) string {
	switch kind.(type) {
	case *corev1.Service:
		return "services"
	case *discoveryv1.EndpointSlice:
		return "endpointslices"
	case *corev1.Node:
		return "nodes"
	}
	return "servicecidrs"
}
