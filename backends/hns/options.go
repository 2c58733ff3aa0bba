package hns

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// defaultCheckInterval is how often the backend checks whether another program has changed its load balancers, which
// lists all of them.
const defaultCheckInterval = time.Minute

// Options configure a [Backend]. Network is required.
type Options struct {
	// Common are the options that all backends have.
	frontend.Common
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
	// Dataplane is HNS. Default: this machine's.
	Dataplane Dataplane

	// Tests set checkInterval instead of defaultCheckInterval, negative for none, and hostMAC instead of looking it up.
	checkInterval time.Duration
	hostMAC       func(nodeIP netip.Addr) (string, error)
}

// complete fills in defaults, except for the dataplane, and returns an error that joins everything invalid.
func (o *Options) complete() error {
	o.checkInterval = cmp.Or(o.checkInterval, defaultCheckInterval)
	if o.hostMAC == nil {
		o.hostMAC = hostMAC
	}
	var errs []error
	if o.Network == "" {
		errs = append(errs, errors.New("network: must not be empty"))
	}
	if o.SourceVIP.IsValid() && (o.SourceVIP.IsUnspecified() || o.SourceVIP.Is4In6()) {
		errs = append(errs, fmt.Errorf("sourceVIP: %v is not a host address", o.SourceVIP))
	}
	if c := o.NodePortAddresses; c.Primary || len(c.CIDRs) > 0 {
		errs = append(errs, errors.New("nodePortAddresses: HNS serves node ports on all addresses of the node"))
	}
	return errors.Join(errs...)
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
	return "", fmt.Errorf("no interface of this host has both the node's address %v and a hardware address", nodeIP)
}
