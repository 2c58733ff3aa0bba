package ipvs

import (
	"context"
	"errors"
	"net/netip"
	"syscall"

	"github.com/prometheus/client_golang/prometheus"

	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// metrics are those of the mode. Kube-proxy has one in it, of iptables beside IPVS.
type metrics struct {
	shared.Group
	filterFailures, requests, requestFailures, resyncs, repairs *prometheus.CounterVec
	servers, draining                                           *prometheus.GaugeVec
}

func newMetrics(families []model.Family) *metrics {
	const (
		all    = "kubeproxy_sync_proxy_rules_"
		prefix = all + "ipvs_"
	)
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, []string{"ip_family"})
	}
	m := &metrics{
		filterFailures: shared.Counter(families, all+"nftables_sync_failures_total",
			"Attempts to apply changes, or everything, that failed"),
		requests: shared.Counter(families, prefix+"requests_total",
			"Requests to IPVS, and for addresses of the dummy interface"),
		requestFailures: shared.Counter(families, prefix+"request_failures_total",
			"Requests to IPVS, and for addresses of the dummy interface, that failed"),
		resyncs: shared.Counter(families, prefix+"resyncs_total", "Comparisons with everything that the kernel has"),
		repairs: shared.Counter(families, prefix+"repairs_total",
			"Repairs of the packet filter after other programs had changed it"),
		servers:  gauge("virtual_servers", "Virtual servers of the proxy"),
		draining: gauge("draining_endpoints", "Endpoints that have gone and keep the connections that they have"),
	}
	m.Metrics = []prometheus.Collector{m.filterFailures, m.requests, m.requestFailures, m.resyncs, m.repairs, m.servers,
		m.draining}
	return m
}

// familyMetrics are the metrics of one family.
type familyMetrics struct {
	filterFailures, requests, requestFailures, resyncs, repairs prometheus.Counter
	servers, draining                                           prometheus.Gauge
}

func (m *metrics) of(f model.Family) *familyMetrics {
	name := f.String()
	return &familyMetrics{filterFailures: m.filterFailures.WithLabelValues(name),
		requests: m.requests.WithLabelValues(name), requestFailures: m.requestFailures.WithLabelValues(name),
		resyncs: m.resyncs.WithLabelValues(name), repairs: m.repairs.WithLabelValues(name),
		servers: m.servers.WithLabelValues(name), draining: m.draining.WithLabelValues(name)}
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

// countDelete counts a request to delete. What has gone already is no failure.
func (c *countedRequests) countDelete(err error) error {
	if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT) {
		_ = c.count(nil)
		return err
	}
	return c.count(err)
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
	return c.countDelete(c.Interface.DeleteServer(ctx, key))
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
	return c.countDelete(c.Interface.DeleteDestination(ctx, key, target))
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
