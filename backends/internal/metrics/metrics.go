// Package metrics is what the metrics of all backends share.
package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// Group is the metrics of a backend, which are registered and unregistered together.
type Group struct{ Metrics []prometheus.Collector }

// Register registers the metrics, if there is a registerer, and returns what takes them away again.
func (g *Group) Register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	if err := r.Register(g); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return func() { r.Unregister(g) }, nil
}

// Describe implements [prometheus.Collector].
func (g *Group) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range g.Metrics {
		m.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (g *Group) Collect(ch chan<- prometheus.Metric) {
	for _, m := range g.Metrics {
		m.Collect(ch)
	}
}

// Counter returns a counter for each of the families, which begins with 0.
func Counter(families []model.Family, name, help string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"ip_family"})
	for _, f := range families {
		c.WithLabelValues(f.String())
	}
	return c
}
