package watchhealth

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// UnendedLists counts incomplete streamed lists, by resource.
type UnendedLists struct{ *prometheus.CounterVec }

// NewUnendedLists returns the metric PREFIXunended_lists_total.
func NewUnendedLists(prefix string) UnendedLists {
	return UnendedLists{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "unended_lists_total",
		Help: "Streamed lists whose end did not come, by resource",
	}, []string{"resource"})}
}

// Count counts an incomplete list of a kind of object.
func (l UnendedLists) Count(kind metav1.Object) {
	resource := "servicecidrs"
	switch kind.(type) {
	case *corev1.Service:
		resource = "services"
	case *discoveryv1.EndpointSlice:
		resource = "endpointslices"
	case *corev1.Node:
		resource = "nodes"
	}
	l.WithLabelValues(resource).Inc()
}
