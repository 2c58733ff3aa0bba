package dropin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/iptables"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func startIPTables(ctx context.Context, c *v1alpha2.KubeProxyConfiguration, m *machine,
	o backendOptions) (backend, error) {
	return iptables.New(ctx, iptables.Options{
		Common:             o.common(c, m),
		LocalhostNodePorts: *c.IPTables.LocalhostNodePorts,
		Dataplanes:         m.iptables,
	})
}

// usableIPTables returns an error if iptables does not work for a family. The other family is served anyway, for
// example IPv4 without ip6tables or its kernel modules.
func usableIPTables(ctx context.Context, f model.Family, m *machine) error {
	if m.iptables != nil {
		if slices.ContainsFunc(m.iptables, func(d dataplane.Interface) bool { return d.Features().Family == f }) {
			return nil
		}
		return fmt.Errorf("%v: %w", f, exec.ErrNotFound)
	}
	d, err := dataplane.New(ctx, dataplane.Options{Family: f})
	if err == nil {
		return d.Close()
	}
	if !dataplane.IsAbsent(err) {
		// The program exists. If the problem persists, the start fails with it.
		klog.FromContext(ctx).V(2).Info("iptables does not work at the moment", "family", f, "reason", err)
		return nil
	}
	return err
}

// servesLocalhost reports whether node ports are also served on 127.0.0.1 (S36).
func servesLocalhost(c *v1alpha2.KubeProxyConfiguration) bool {
	choice, err := config.NodePortAddresses(c)
	return c.Mode == v1alpha2.ProxyModeIPTables && *c.IPTables.LocalhostNodePorts && err == nil && choice.Loopback()
}

// iptablesInUse returns the dataplanes of both variants that may need a clean-up, because the node may have switched
// variants. The error joins those that cannot be read; the others are still returned. Always call done.
func (m *machine) iptablesInUse(ctx context.Context) (found []dataplane.Interface, done func(), err error) {
	if m.iptables != nil {
		return m.iptables, func() {}, nil
	}
	found, err = dataplane.OpenInUse(ctx, nil, "")
	return found, func() {
		for _, d := range found {
			_ = d.Close()
		}
	}, err
}

func cleanUpIPTables(ctx context.Context, m *machine) error {
	found, done, err := m.iptablesInUse(ctx)
	defer done()
	errs := []error{err}
	for _, d := range found {
		errs = append(errs, iptables.CleanUp(ctx, iptables.Options{Dataplanes: []dataplane.Interface{d}}))
	}
	if errors.Is(err, fs.ErrPermission) {
		errs = append(errs, errors.New("is this process root with CAP_NET_ADMIN and CAP_NET_RAW in its network namespace?"))
	}
	return errors.Join(errs...)
}

// upstreamChain reports whether a chain belongs to Kubernetes' own kube-proxy of any version since 1.8, in mode
// iptables, ipvs or userspace. The kubelet has chains with the same prefix, among them KUBE-FIREWALL in table filter,
// and KUBE-MARK-MASQ and KUBE-MARK-DROP stay, because other programs jump to them.
func upstreamChain(table dataplane.Table, name string) bool {
	switch table {
	case dataplane.NAT:
		switch name {
		case "KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-PROXY-CANARY",
			"KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", // mode ipvs
			"KUBE-FIRE-WALL", "KUBE-FIREWALL", // mode ipvs until about 1.10 and 1.25
			"KUBE-PORTALS-CONTAINER", "KUBE-PORTALS-HOST", // mode userspace, until 1.25
			"KUBE-NODEPORT-CONTAINER", "KUBE-NODEPORT-HOST":
			return true
		}
		return slices.ContainsFunc([]string{
			"KUBE-SVC-", // with KUBE-SVC-IPSETS of mode ipvs
			"KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-",
			"KUBE-XLB-", // until 1.23
		}, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	case dataplane.Filter:
		switch name {
		case "KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
			"KUBE-PROXY-CANARY",
			"KUBE-NODE-PORT", "KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", // mode ipvs
			"KUBE-NODEPORT-NON-LOCAL": // mode userspace, until 1.25
			return true
		}
	case dataplane.Mangle:
		return name == "KUBE-PROXY-CANARY"
	}
	return false
}

func cleanUpUpstreamIPTables(ctx context.Context, m *machine) error {
	found, done, err := m.iptablesInUse(ctx)
	defer done()
	errs := []error{err}
	for _, d := range found {
		if err := dataplane.RemoveChains(ctx, d, "KUBE-", upstreamChain,
			dataplane.NAT, dataplane.Filter, dataplane.Mangle); err != nil {
			errs = append(errs, fmt.Errorf("%v, iptables-%s: %w", d.Features().Family, d.Features().Variant, err))
		}
	}
	return errors.Join(errs...)
}

// findUpstreamIPTables finds the chain that kube-proxy creates in modes iptables and ipvs. One that a clean-up had to
// leave is empty, and no built-in chain jumps to it: see dataplane.RemoveChains.
func findUpstreamIPTables(ctx context.Context, m *machine) (names []string, err error) {
	found, done, err := m.iptablesInUse(ctx)
	defer done()
	errs := []error{err}
	for _, d := range found {
		const chain = "KUBE-SERVICES"
		state, err := d.Read(ctx, dataplane.NAT, chain)
		errs = append(errs, err)
		if err != nil {
			continue
		}
		if len(state.Chains[chain]) > 0 || slices.ContainsFunc(state.Jumps, func(jump dataplane.BuiltinRule) bool {
			return dataplane.Target(jump.Rule) == chain
		}) {
			names = append(names, fmt.Sprintf("chain %s (%v, iptables-%s)", chain, d.Features().Family, d.Features().Variant))
		}
	}
	return names, errors.Join(errs...)
}
