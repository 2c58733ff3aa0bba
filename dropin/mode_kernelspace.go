package dropin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"sigs.k8s.io/kube-proxy-lib/backends/hns"
	"sigs.k8s.io/kube-proxy-lib/conntrack"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/hns/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// kernelspace is the mode for Windows.
func kernelspace() mode {
	none := func(context.Context, *machine) error { return nil }
	return mode{name: v1alpha2.ProxyModeKernelspace, usable: usableKernelspace, start: startKernelspace,
		cleanUp: cleanUpKernelspace, cleanUpUpstream: none, // the backend adopts what upstream left
		readsMetadata: true}
}

// usableKernelspace returns the reason why HNS cannot serve a family.
func usableKernelspace(ctx context.Context, f model.Family, m *machine) error {
	hns, err := m.theHNS()
	if err != nil {
		return err
	}
	features, err := hns.Features(ctx)
	if err == nil && f == model.IPv6 && !features.IPv6DualStack {
		err = fmt.Errorf("IPv6 is %w", dataplane.ErrNotSupported)
	}
	return err
}

func (m *machine) theHNS() (dataplane.Interface, error) {
	if m.hns != nil {
		return m.hns, nil
	}
	return dataplane.NewHNS()
}

func startKernelspace(ctx context.Context, c *v1alpha2.KubeProxyConfiguration, m *machine,
	o backendOptions) (backend, error) {
	options, err := kernelspaceOptions(c, o, m)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(options.RecordFile), 0o750); err != nil {
		return nil, err
	}
	return hns.New(ctx, options)
}

// Defaults in the code of Kubernetes' kube-proxy for the winkernel section, and environment variables.
const (
	networkVariable     = "KUBE_NETWORK"
	defaultRootEndpoint = "cbr0"
)

// kernelspaceOptions returns the options from the configuration's winkernel section (S51 to S55).
func kernelspaceOptions(c *v1alpha2.KubeProxyConfiguration, o backendOptions, m *machine) (hns.Options, error) {
	w := c.Winkernel
	o.NodePortAddresses = nodeaddr.Choice{} // not supported by HNS
	network, err := networkName(c)
	if err != nil {
		return hns.Options{}, err
	}
	options := hns.Options{
		Common:     o.common(c, m),
		Network:    network,
		DSR:        w.EnableDSR,
		RecordFile: m.recordFile(),
		Dataplane:  m.hns,
	}
	if w.ForwardHealthCheckVip {
		options.RootEndpoint = cmp.Or(w.RootHnsEndpointName, defaultRootEndpoint)
	}
	if w.SourceVip != "" {
		if options.SourceVIP, err = netip.ParseAddr(w.SourceVip); err != nil {
			return options, fmt.Errorf("winkernel.sourceVip: %q is not an IP address", w.SourceVip)
		}
	}
	if _, port, err := net.SplitHostPort(c.HealthzBindAddress); err == nil {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return options, fmt.Errorf("healthzBindAddress: %q has no port", c.HealthzBindAddress)
		}
		options.HealthzPort = uint16(number)
	}
	return options, nil
}

// networkName returns the name of the HNS network (S51).
func networkName(c *v1alpha2.KubeProxyConfiguration) (string, error) {
	name := cmp.Or(c.Winkernel.NetworkName, os.Getenv(networkVariable))
	if name == "" {
		return "", errors.New(
			"winkernel.networkName: the name of the HNS network is neither set nor in the environment " +
				"variable " + networkVariable)
	}
	return name, nil
}

// recordFile returns the path of the file that records this program's load balancers for the next start.
func (m *machine) recordFile() string {
	if m.hnsRecord != "" {
		return m.hnsRecord
	}
	return filepath.Join(cmp.Or(os.Getenv("ProgramData"), `C:\ProgramData`), "kube-proxy-lib", "load-balancers")
}

func cleanUpKernelspace(ctx context.Context, m *machine) error {
	if m.network == "" {
		return errors.New("the name of the HNS network is unknown: set --network-name or --config")
	}
	return hns.CleanUp(ctx, hns.Options{Network: m.network, RecordFile: m.recordFile(), Dataplane: m.hns})
}

// noFlows is an empty flow table for Windows, where HNS manages flows itself.
type noFlows struct{}

func (noFlows) DeleteUDP(context.Context, model.Family, []conntrack.Selection, func(conntrack.Flow) bool) (int, error) {
	return 0, nil
}
