package dropin

import (
	"context"
	"errors"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/config"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	ipvsdataplane "sigs.k8s.io/kube-proxy-lib/internal/ipvs/dataplane"
)

func startIPVS(ctx context.Context, c *v1alpha2.KubeProxyConfiguration, m *machine, o backendOptions) (backend, error) {
	options, err := ipvsOptions(c, o, m)
	if err != nil {
		return nil, err
	}
	m.excludeCIDRs = options.ExcludeCIDRs
	return ipvs.New(ctx, options)
}

// ipvsOptions returns the options for the section ipvs of the configuration.
func ipvsOptions(c *v1alpha2.KubeProxyConfiguration, o backendOptions, m *machine) (ipvs.Options, error) {
	exclude, err := config.ExcludeCIDRs(c)
	if err != nil {
		return ipvs.Options{}, err
	}
	return ipvs.Options{
		Common:       o.common(c, m),
		Scheduler:    c.IPVS.Scheduler,
		ExcludeCIDRs: exclude,
		StrictARP:    c.IPVS.StrictARP,
		Timeouts: ipvs.Timeouts{TCP: c.IPVS.TCPTimeout.Duration, TCPFin: c.IPVS.TCPFinTimeout.Duration,
			UDP: c.IPVS.UDPTimeout.Duration},
		Marks:     m.ipvsMarks,
		Link:      m.ipvsLink,
		Dataplane: m.ipvs,
		NFTables:  m.nftables,
	}, nil
}

func cleanUpIPVS(ctx context.Context, m *machine) error {
	return errors.Join(ipvs.CleanUp(ctx, ipvs.Options{Link: m.ipvsLink, Dataplane: m.ipvs, NFTables: m.nftables}),
		m.deleteDefaultLink(ctx))
}

// deleteDefaultLink deletes the dummy interface of an earlier process that ran without --ipvs-interface.
func (m *machine) deleteDefaultLink(ctx context.Context) error {
	if m.ipvs != nil || m.ipvsLink == "" || m.ipvsLink == ipvsdataplane.DefaultLink || !ipvsdataplane.IsLoaded() {
		return nil
	}
	k, err := ipvsdataplane.NewKernel(ctx, ipvsdataplane.DefaultLink)
	if err != nil {
		return err
	}
	return errors.Join(k.DeleteLink(ctx), k.Close())
}

// cleanUpUpstreamIPVS removes the virtual servers, the dummy interface and the ipsets of Kubernetes' own kube-proxy.
// Its chains were removed with those of mode iptables.
func cleanUpUpstreamIPVS(ctx context.Context, m *machine) error {
	if m.ipvs != nil {
		return nil // a test's, which has one dummy interface only
	}
	upstream, err := ipvs.UpstreamDataplane(ctx)
	if err != nil {
		return err
	}
	var errs []error
	if upstream != nil {
		host, err := m.host.Addresses()
		errs = append(errs, err)
		var addrs []netip.Addr
		for _, a := range host {
			addrs = append(addrs, a.Addr)
		}
		options := ipvs.Options{ExcludeCIDRs: m.excludeCIDRs, Link: m.ipvsLink}
		errs = append(errs, ipvs.CleanUpUpstream(ctx, upstream, options, addrs), upstream.Close(),
			m.deleteDefaultLink(ctx))
	}
	return errors.Join(append(errs, destroyUpstreamSets())...)
}
