package dropin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/nft"
	"sigs.k8s.io/kube-proxy-lib/backends/userspace"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	nftdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func startNFTables(ctx context.Context, c *v1alpha2.KubeProxyConfiguration, m *machine,
	o backendOptions) (backend, error) {
	kernel, err := nft.New(ctx, nft.Options{
		Common:    o.common(c, m),
		Dataplane: m.nftables,
	})
	if err != nil || !o.loopback {
		return kernel, err
	}
	loopback, err := userspace.NewLoopback(ctx, userspace.Options{Common: o.common(c, m)})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("node ports on loopback addresses: %w", err), kernel.Close())
	}
	return &nftablesAndLoopback{TeeSink: loopback.Beside(kernel), follower: kernel, Repairer: kernel,
		ProblemReporter: kernel, ContestReporter: kernel, ExternalReporter: kernel, kernel: kernel,
		loopback: loopback}, nil
}

// proxiesLoopback reports whether a proxy in this process serves node ports on 127.0.0.1 and ::1, as far as
// nodePortAddresses includes them (S36a).
func (s *settings) proxiesLoopback() bool {
	return s.Mode == v1alpha2.ProxyModeNFTables && s.gates.Enabled(config.KubeProxyNFTablesLocalhostNodePorts)
}

// noLoopbackProxy returns the reason why the enabled feature gate has no effect, or "".
func (s *settings) noLoopbackProxy() string {
	if !s.proxiesLoopback() {
		return "it is for mode nftables"
	}
	loopback := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	choice, err := config.NodePortAddresses(s.KubeProxyConfiguration)
	if err == nil && len(choice.Of(loopback, nil).IPs) == 0 {
		return "nodePortAddresses includes no loopback address"
	}
	return ""
}

// nftablesAndLoopback combines the nft backend with the proxy for node ports on loopback addresses. That proxy follows
// no addresses, and has no repairs, problems or contests to report.
type nftablesAndLoopback struct {
	*sink.TeeSink
	follower
	sink.Repairer
	sink.ProblemReporter
	sink.ContestReporter
	sink.ExternalReporter
	kernel   *nft.Backend
	loopback *userspace.Loopback
}

// Close implements backend. It closes connections through loopback addresses.
func (n *nftablesAndLoopback) Close() error { return errors.Join(n.loopback.Close(), n.kernel.Close()) }

// DescribeService implements sink.Describer.
func (n *nftablesAndLoopback) DescribeService(ctx context.Context, name model.ServiceName) (string, error) {
	rules, err := n.kernel.DescribeService(ctx, name)
	sockets, err2 := n.loopback.DescribeService(ctx, name)
	if sockets != "" {
		rules += "\nOn loopback addresses:\n\n" + sockets
	}
	return rules, errors.Join(err, err2)
}

func cleanUpNFTables(ctx context.Context, m *machine) error {
	return nft.CleanUp(ctx, nft.Options{Dataplane: m.nftables})
}

// upstreamTable is the name of the tables of Kubernetes' own kube-proxy in mode nftables.
const upstreamTable = "kube-proxy"

func cleanUpUpstreamNFTables(ctx context.Context, m *machine) error {
	return nft.CleanUp(ctx, nft.Options{TableName: upstreamTable, Dataplane: m.nftables})
}

func findUpstreamNFTables(ctx context.Context, m *machine) (found []string, err error) {
	kernel := m.nftables
	if kernel == nil {
		if kernel, err = nftdataplane.NewNetlink(); err != nil {
			return nil, err
		}
		defer func() { _ = kernel.Close() }()
	}
	var errs []error
	for _, f := range model.Families() {
		key := nftdataplane.TableKey{Family: f, Name: upstreamTable}
		table, err := kernel.ReadTable(ctx, key, func(*nftdataplane.TableSet) bool { return false })
		if table != nil {
			found = append(found, "nft table "+key.String())
		}
		errs = append(errs, err)
	}
	return found, errors.Join(errs...)
}
