package kubeproxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/internal/prom"
	"sigs.k8s.io/kube-proxy-lib/internal/watchhealth"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are the metrics of a run, under the names and with the labels of kube-proxy.
type metrics struct {
	sync, syncFull, syncPartial *prometheus.HistogramVec
	programming                 *prometheus.HistogramVec
	lastSync, lastQueued        *prometheus.GaugeVec
	noLocal, failed             *prometheus.GaugeVec
	services, endpoints         changeMetrics
	lists                       watchhealth.Lists
}

// changeMetrics count the changes of one kind of object.
type changeMetrics struct {
	pending prometheus.Gauge
	total   prometheus.Counter
}

const (
	metricPrefix = "kubeproxy_"
	labelFamily  = "ip_family"
	labelPolicy  = "traffic_policy"
)

func newMetrics() *metrics {
	work := func(name, help string) *prometheus.HistogramVec {
		return prom.NewHistogram(metricPrefix+name, help, prom.Work())
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: metricPrefix + name, Help: help}, labels)
	}
	changes := func(kind, object string) changeMetrics {
		return changeMetrics{
			pending: prometheus.NewGauge(prometheus.GaugeOpts{
				Name: metricPrefix + "sync_proxy_rules_" + kind + "_changes_pending",
				Help: "Services whose " + object + " changed since the last Sync began"}),
			total: prometheus.NewCounter(prometheus.CounterOpts{
				Name: metricPrefix + "sync_proxy_rules_" + kind + "_changes_total",
				Help: object + "s received that differ from the previous version"}),
		}
	}
	return &metrics{
		sync:        work("sync_proxy_rules_duration_seconds", "Duration of a Sync in seconds"),
		syncFull:    work("sync_full_proxy_rules_duration_seconds", "Duration of a full resync in seconds"),
		syncPartial: work("sync_partial_proxy_rules_duration_seconds", "Duration of a Sync of changes in seconds"),
		programming: prom.NewHistogram(metricPrefix+"network_programming_duration_seconds",
			"Time from a change of pods to the end of the Sync that applies it in seconds", prom.Latency()),
		lastSync: gauge("sync_proxy_rules_last_timestamp_seconds", "When the last successful Sync ended",
			labelFamily),
		lastQueued: gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When the latest change was received",
			labelFamily),
		noLocal: gauge("sync_proxy_rules_no_local_endpoints_total",
			"Service ports with a Local traffic policy and no endpoint on this node", labelPolicy, labelFamily),
		failed: gauge("service_ports_failed",
			"Service ports of which the dataplane refused a part in the last Sync", labelFamily),
		lists:     watchhealth.NewLists(metricPrefix),
		services:  changes("service", "Service object"),
		endpoints: changes("endpoint", "EndpointSlice object"),
	}
}

// register registers all the metrics, and returns a function that unregisters them.
func (m *metrics) register(r prometheus.Registerer) (unregister func(), err error) {
	return prom.RegisterAll(r, m.sync, m.syncFull, m.syncPartial, m.programming, m.lastSync, m.lastQueued, m.noLocal,
		m.failed, m.lists, m.services.pending, m.services.total, m.endpoints.pending, m.endpoints.total)
}

// setPending records the number of changes that wait to be handed over.
func (m *metrics) setPending(pending localstate.Pending) {
	m.services.pending.Set(float64(pending.Services))
	m.endpoints.pending.Set(float64(pending.Endpoints))
}

// synced records a Sync that applied a family.
func (m *metrics) synced(f model.Family, full bool, start, end time.Time, triggers []time.Time) {
	label := f.String()
	duration := end.Sub(start).Seconds()
	m.sync.WithLabelValues(label).Observe(duration)
	if full {
		m.syncFull.WithLabelValues(label).Observe(duration)
	} else {
		m.syncPartial.WithLabelValues(label).Observe(duration)
	}
	m.lastSync.WithLabelValues(label).Set(seconds(end))
	for _, t := range triggers {
		m.programming.WithLabelValues(label).Observe(end.Sub(t).Seconds())
	}
}

// setNoLocal records the number of service ports of a family that need an endpoint on this node and have none.
func (m *metrics) setNoLocal(f model.Family, n localstate.NoLocalEndpoints) {
	m.noLocal.WithLabelValues("internal", f.String()).Set(float64(*n.Internal.At(f)))
	m.noLocal.WithLabelValues("external", f.String()).Set(float64(*n.External.At(f)))
}

// setFailed records the number of service ports that failed, of each family that is served.
func (m *metrics) setFailed(f model.Family, ports int) {
	m.failed.WithLabelValues(f.String()).Set(float64(ports))
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }
