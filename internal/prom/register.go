package prom

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// Group is a group of metrics that are registered and unregistered together.
type Group struct{ Metrics []prometheus.Collector }

// Register registers the metrics, if there is a registerer, and returns a function that unregisters them.
func (g *Group) Register(r prometheus.Registerer) (unregister func(), err error) {
	if r == nil {
		return func() {}, nil
	}
	if err := r.Register(g); err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return func() { r.Unregister(g) }, nil
}

// RegisterAll registers metrics like [Group.Register].
func RegisterAll(r prometheus.Registerer, metrics ...prometheus.Collector) (unregister func(), err error) {
	return (&Group{metrics}).Register(r)
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
