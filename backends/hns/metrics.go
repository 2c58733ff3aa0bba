package hns

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	shared "sigs.k8s.io/kube-proxy-lib/backends/internal/metrics"
	dp "sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
)

// metrics are kube-proxy's in mode kernelspace, with its names and labels. As there, a series begins with its first
// failure. There are at most 25 for each counter and family.
type metrics struct {
	creations, updates, deletions *prometheus.CounterVec // that failed
}

func newMetrics(g *shared.Group) *metrics {
	failures := func(operation string) *prometheus.CounterVec {
		return shared.Add(g, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeproxy_sync_proxy_rules_winkernel_lb_" + operation + "_failures_total",
			Help: "Attempts to " + operation + " a load balancer that failed",
		}, []string{"ip_family", "lb_type", "error"}))
	}
	return &metrics{creations: failures("create"), updates: failures("update"), deletions: failures("delete")}
}

// count counts a failure of a load balancer, if err is one.
func (f *family) count(failures *prometheus.CounterVec, b *balancer, err error) {
	if err != nil {
		failures.WithLabelValues(f.key.String(), string(b.kind()), reasonOf(err)).Inc()
	}
}

// reasonOf returns the value of the label error, of which there are few.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, dp.ErrAlreadyExists):
		return "port_already_exists"
	case errors.Is(err, dp.ErrNetworkNotFound):
		return "network_not_found"
	case errors.Is(err, dp.ErrNotSupported):
		return "not_implemented"
	case errors.Is(err, dp.ErrInvalidAddress):
		return "invalid_ip"
	}
	return "other"
}

// kind is a value of the label lb_type.
type kind string

const (
	ofClusterIP   kind = "clusterip"
	ofNodePort    kind = "nodeport"
	ofExternalIP  kind = "externalip"
	ofIngressIP   kind = "ingressip"
	ofHealthCheck kind = "healthcheck"
)

func kindOf(k frontend.Kind) kind {
	switch k {
	case frontend.NodePort:
		return ofNodePort
	case frontend.ExternalIP:
		return ofExternalIP
	case frontend.LoadBalancerIP:
		return ofIngressIP
	default:
		return ofClusterIP
	}
}

// kind returns what a load balancer is for. That of one that an earlier process left, and that no service asks for, is
// taken from its address and flags, which do not distinguish a load-balancer IP from an external one.
func (b *balancer) kind() kind {
	if _, s := b.want(); s != nil {
		return s.kind
	}
	switch {
	case b.last != "":
		return b.last
	case !b.key.Addr.IsValid():
		return ofNodePort
	case b.have != nil && b.have.PortFlags&dp.VIPExternalIP != 0:
		return ofExternalIP
	}
	return ofClusterIP
}
