package watchhealth

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Lists counts unusual lists of objects, by resource. It is a [prometheus.Collector].
type Lists struct{ incomplete, afterSilence *prometheus.CounterVec }

// NewLists returns the metrics PREFIXincomplete_lists_total and PREFIXsilent_watch_relists_total.
func NewLists(prefix string) Lists {
	counter := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, []string{"resource"})
	}
	return Lists{
		incomplete:   counter("incomplete_lists_total", "Streamed lists that did not complete, by resource"),
		afterSilence: counter("silent_watch_relists_total", "Lists made because the API server was silent, by resource"),
	}
}

// Incomplete counts a streamed list of a kind of object that did not complete.
func (l Lists) Incomplete(kind metav1.Object) { l.incomplete.WithLabelValues(resource(kind)).Inc() }

// AfterSilence counts a list of a kind of object that was made because the API server was silent.
func (l Lists) AfterSilence(kind metav1.Object) { l.afterSilence.WithLabelValues(resource(kind)).Inc() }

// Describe implements [prometheus.Collector].
func (l Lists) Describe(out chan<- *prometheus.Desc) {
	l.incomplete.Describe(out)
	l.afterSilence.Describe(out)
}

// Collect implements [prometheus.Collector].
func (l Lists) Collect(out chan<- prometheus.Metric) {
	l.incomplete.Collect(out)
	l.afterSilence.Collect(out)
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
