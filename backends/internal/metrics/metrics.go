// Package metrics is what the metrics of all backends share.
package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// Group is the metrics of a backend.
type Group struct{ prom.Group }

// Add adds a metric to the group, and returns it.
func Add[M prometheus.Collector](g *Group, m M) M {
	g.Metrics = append(g.Metrics, m)
	return m
}

// Counter adds a counter of one family, which begins with 0.
func (g *Group) Counter(f model.Family, name, help string) prometheus.Counter {
	return Add(g, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: Labels(f)}))
}

// Gauge adds a gauge of one family, which begins with 0.
func (g *Group) Gauge(f model.Family, name, help string) prometheus.Gauge {
	return Add(g, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: Labels(f)}))
}

// Labels are the labels of the metrics of one family.
func Labels(f model.Family) prometheus.Labels { return prometheus.Labels{"ip_family": f.String()} }
