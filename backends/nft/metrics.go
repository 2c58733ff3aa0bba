package nft

import (
	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's in this mode, with its names and labels.
type metrics struct {
	shared.Group
	syncFailures, cleanUpFailures *prometheus.CounterVec
}

func newMetrics(families []model.Family) *metrics {
	const prefix = "kubeproxy_sync_proxy_rules_nftables_"
	m := &metrics{
		syncFailures: shared.Counter(families, prefix+"sync_failures_total",
			"Attempts to apply changes, or everything, that failed"),
		cleanUpFailures: shared.Counter(families, prefix+"cleanup_failures_total",
			"Attempts to remove what is no longer needed that failed"),
	}
	m.Metrics = []prometheus.Collector{m.syncFailures, m.cleanUpFailures}
	return m
}
