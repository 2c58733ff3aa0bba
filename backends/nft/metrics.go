package nft

import (
	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's in this mode, with its names and labels, of one family.
type metrics struct{ syncFailures, cleanUpFailures prometheus.Counter }

func newMetrics(g *shared.Group, f model.Family) *metrics {
	const prefix = "kubeproxy_sync_proxy_rules_nftables_"
	return &metrics{
		syncFailures: g.Counter(f, prefix+"sync_failures_total",
			"Failed attempts to apply changes or the full state"),
		cleanUpFailures: g.Counter(f, prefix+"cleanup_failures_total",
			"Failed attempts to remove obsolete objects"),
	}
}
