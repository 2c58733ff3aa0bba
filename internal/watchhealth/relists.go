package watchhealth

import (
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Relists counts the lists that were made because the API server was silent, by resource.
type Relists struct{ *prometheus.CounterVec }

// NewRelists returns the metric PREFIXsilent_watch_relists_total.
func NewRelists(prefix string) Relists {
	return Relists{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "silent_watch_relists_total",
		Help: "Lists made because the API server was silent, by resource",
	}, []string{"resource"})}
}

// Count counts a list of a kind of object.
func (r Relists) Count(kind metav1.Object) { r.WithLabelValues(resource(kind)).Inc() }
