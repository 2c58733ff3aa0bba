package dropin

import (
	"context"
	"errors"
	"net/netip"

	"sigs.k8s.io/kube-proxy-lib/backends/ipvs"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	ipvsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
)

func startIPVS(ctx context.Context, c *v1alpha2.KubeProxyConfiguration, m *machine, o backendOptions) (backend, error) {
	options, err := ipvsOptions(c, o, m)
	if err != nil {
		return nil, err
	}
	if o.otherNodes != nil {
		if options.OtherNodes, err = o.otherNodes(); err != nil {
			return nil, err
		}
		options.APIServers = o.apiServers
	}
	return ipvs.New(ctx, options)
}

// ipvsOptions returns the options from the configuration's ipvs section.
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
	switch {
	case m.upstreamIPVS != nil:
		return m.cleanUpVirtualServers(ctx, m.upstreamIPVS)
	case m.ipvs != nil:
		return nil // a test, which has only one dummy interface
	}
	upstream, err := ipvs.UpstreamDataplane(ctx)
	if err != nil {
		return err
	}
	var errs []error
	if upstream != nil {
		errs = append(errs, m.cleanUpVirtualServers(ctx, upstream), upstream.Close(), m.deleteDefaultLink(ctx))
	}
	return errors.Join(append(errs, destroyUpstreamSets())...)
}

// cleanUpVirtualServers removes the virtual servers of Kubernetes' own kube-proxy, and its dummy interface. It removes
// nothing while it is unknown which virtual servers belong to other programs.
func (m *machine) cleanUpVirtualServers(ctx context.Context, upstream ipvsdataplane.Interface) error {
	if m.excludeErr != nil {
		return m.excludeErr
	}
	host, err := m.host.Addresses()
	var addrs []netip.Addr
	for _, a := range host {
		addrs = append(addrs, a.Addr)
	}
	options := ipvs.Options{ExcludeCIDRs: m.excludeCIDRs, Link: m.ipvsLink}
	return errors.Join(err, ipvs.CleanUpUpstream(ctx, upstream, options, addrs))
}
