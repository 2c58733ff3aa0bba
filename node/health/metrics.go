package health

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

func (p *Proxy) addMetrics() {
	counter := func(name, path string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_" + name, Help: "Answers of " + path + " by status code"}, []string{"code"})
	}
	p.healthz = counter("proxy_healthz_total", "/healthz")
	p.livez = counter("proxy_livez_total", "/livez")
	p.metrics = []prometheus.Collector{p.healthz, p.livez,
		timestamp("disconnected_since", "Since when nothing comes from the API server or the brain; 0: something does",
			p.DisconnectedSince),
		timestamp("restored_state", "The time of the state in use if it comes from a file; 0: it does not", p.RestoredFrom)}
}

// timestamp is a gauge of a time, in seconds since 1970; 0 is no time.
func timestamp(name, help string, at func() time.Time) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubeproxy_" + name + "_timestamp_seconds", Help: help},
		func() float64 {
			if at := at(); !at.IsZero() {
				return float64(at.UnixMilli()) / 1000
			}
			return 0
		})
}

// Describe implements [prometheus.Collector].
func (p *Proxy) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range p.metrics {
		m.Describe(ch)
	}
}

// Collect implements [prometheus.Collector].
func (p *Proxy) Collect(ch chan<- prometheus.Metric) {
	for _, m := range p.metrics {
		m.Collect(ch)
	}
}
