package hns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
	"sigs.k8s.io/kube-proxy-lib/internal/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// defaultCheckInterval is how often the backend checks whether another program has changed its load balancers, which
// lists all of them.
const defaultCheckInterval = time.Minute

// Options configure a [Backend]. Network is required.
type Options struct {
	// Network is the name of the HNS network that pods are on. Sync fails while there is no such network.
	Network string
	// SourceVIP is the source that endpoints see, in overlay networks: an address of the node's pod network that
	// nothing else uses. Networks of other types need none.
	SourceVIP netip.Addr
	// DSR lets endpoints of cluster IPs answer clients directly. Without it they see the node or SourceVIP as the
	// source. External addresses with traffic policy Local always use it, if HNS supports it.
	DSR bool
	// RootEndpoint, if given, is the name of the HNS endpoint of the node itself. Health checks that come to a
	// load-balancer VIP are forwarded to it: to the service's health-check port or, where it has none, to HealthzPort,
	// unless that is 0.
	RootEndpoint string
	HealthzPort  uint16
	// RecordFile is the path of a file, in a directory that exists, where the backend records the addresses and ports
	// of its load balancers. HNS cannot store an owner: without the file, load balancers that an earlier process left
	// for services that were deleted since are treated as those of others.
	RecordFile string
	// Families are the families to serve. Default, nil: IPv4, and IPv6 if HNS supports it.
	Families []model.Family
	// Dataplane is HNS. Default: this machine's.
	Dataplane dataplane.Interface
	// OnProblem, if given, is called once for each part of a service that is not served, during Sync. Problems are
	// logged in any case.
	OnProblem func(ctx context.Context, p frontend.Problem)
	// Metrics, if given, is the registry for the metrics: they are registered until Close. Names and labels are
	// kube-proxy's; see the package documentation for the list.
	Metrics prometheus.Registerer

	// In tests checkInterval is not defaultCheckInterval, but negative for none, and hostMAC is not that of this host.
	checkInterval time.Duration
	hostMAC       func(nodeIP netip.Addr) (string, error)
}

// validate returns an error that joins everything invalid.
func (o *Options) validate() error {
	var errs []error
	if o.Network == "" {
		errs = append(errs, errors.New("network: no name"))
	}
	if o.SourceVIP.IsValid() && (o.SourceVIP.IsUnspecified() || o.SourceVIP.Is4In6()) {
		errs = append(errs, fmt.Errorf("sourceVIP: %v is not the address of a host", o.SourceVIP))
	}
	return errors.Join(append(errs, frontend.CheckFamilies(o.Families))...)
}

// hostMAC finds the hardware address of an address of this host, in the form that HNS has.
func hostMAC(nodeIP netip.Addr) (string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return "", fmt.Errorf("interfaces of this host: %w", err)
	}
	for _, link := range links {
		addrs, err := link.Addrs()
		if err != nil {
			continue // it may be gone
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err == nil && prefix.Addr().Unmap() == nodeIP && len(link.HardwareAddr) > 0 {
				return strings.ReplaceAll(link.HardwareAddr.String(), ":", "-"), nil
			}
		}
	}
	return "", fmt.Errorf("no interface of this host has the node's address %v and a hardware address", nodeIP)
}
