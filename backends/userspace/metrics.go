package userspace

import (
	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are kube-proxy's for node ports on loopback addresses, with its names and labels, of one family. Only
// [NewLoopback] registers them.
type metrics struct {
	listeners prometheus.Gauge
	failures  prometheus.Counter
}

func newMetrics(g *shared.Group, f model.Family) *metrics {
	const prefix = "kubeproxy_nftables_localhost_nodeport_"
	return &metrics{
		listeners: g.Gauge(f, prefix+"listeners", "Listening sockets for node ports on loopback addresses"),
		failures: g.Counter(f, prefix+"listener_creation_failures_total",
			"Failed attempts to open a listening socket for a node port on a loopback address"),
	}
}
