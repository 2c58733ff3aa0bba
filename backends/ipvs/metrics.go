package ipvs

import (
	"context"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// familyMetrics are the metrics of one family. Kube-proxy's mode ipvs has only one of its own, for the iptables that it
// uses next to IPVS.
type familyMetrics struct {
	filterFailures, requests, requestFailures, resyncs, repairs prometheus.Counter
	servers, draining                                           prometheus.Gauge
}

func newMetrics(g *shared.Group, f model.Family) *familyMetrics {
	const (
		all    = "kubeproxy_sync_proxy_rules_"
		prefix = all + "ipvs_"
	)
	return &familyMetrics{
		filterFailures: g.Counter(f, all+"nftables_sync_failures_total",
			"Failed attempts to apply changes or the full state"),
		requests: g.Counter(f, prefix+"requests_total", "Requests to IPVS and for addresses of the dummy interface"),
		requestFailures: g.Counter(f, prefix+"request_failures_total",
			"Failed requests to IPVS and for addresses of the dummy interface"),
		resyncs: g.Counter(f, prefix+"resyncs_total", "Full comparisons with the kernel's state"),
		repairs: g.Counter(f, prefix+"repairs_total",
			"Repairs of the packet filter and of the interface after changes by other programs"),
		servers:  g.Gauge(f, prefix+"virtual_servers", "Virtual servers of the proxy"),
		draining: g.Gauge(f, prefix+"draining_endpoints", "Removed endpoints that still serve existing connections"),
	}
}

// countedRequests counts the requests of a family.
type countedRequests struct {
	dp.Interface
	metrics *familyMetrics
}

func (c *countedRequests) count(err error) error {
	c.metrics.requests.Inc()
	if err != nil {
		c.metrics.requestFailures.Inc()
	}
	return err
}

func (c *countedRequests) Servers(ctx context.Context) ([]dp.Server, error) {
	list, err := c.Interface.Servers(ctx)
	return list, c.count(err)
}

func (c *countedRequests) AddServer(ctx context.Context, s dp.Server) error {
	return c.count(c.Interface.AddServer(ctx, s))
}

func (c *countedRequests) UpdateServer(ctx context.Context, s dp.Server) error {
	return c.count(c.Interface.UpdateServer(ctx, s))
}

func (c *countedRequests) DeleteServer(ctx context.Context, key dp.ServerKey) error {
	return c.count(c.Interface.DeleteServer(ctx, key))
}

func (c *countedRequests) Destinations(ctx context.Context, key dp.ServerKey) ([]dp.Destination, error) {
	list, err := c.Interface.Destinations(ctx, key)
	return list, c.count(err)
}

func (c *countedRequests) AddDestination(ctx context.Context, key dp.ServerKey, d dp.Destination) error {
	return c.count(c.Interface.AddDestination(ctx, key, d))
}

func (c *countedRequests) UpdateDestination(ctx context.Context, key dp.ServerKey, d dp.Destination) error {
	return c.count(c.Interface.UpdateDestination(ctx, key, d))
}

func (c *countedRequests) DeleteDestination(ctx context.Context, key dp.ServerKey, target netip.AddrPort) error {
	return c.count(c.Interface.DeleteDestination(ctx, key, target))
}

func (c *countedRequests) Addresses(ctx context.Context, f model.Family) ([]netip.Addr, error) {
	list, err := c.Interface.Addresses(ctx, f)
	return list, c.count(err)
}

func (c *countedRequests) AddAddress(ctx context.Context, a netip.Addr) error {
	return c.count(c.Interface.AddAddress(ctx, a))
}

func (c *countedRequests) DeleteAddress(ctx context.Context, a netip.Addr) error {
	return c.count(c.Interface.DeleteAddress(ctx, a))
}
