package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// NodeName returns the name of this node's Node object: hostnameOverride, otherwise the host's name, in lower case like
// all object names.
func NodeName(c *v1alpha2.KubeProxyConfiguration, hostname string) (string, error) {
	name := strings.ToLower(strings.TrimSpace(cmp.Or(c.HostnameOverride, hostname)))
	if name == "" {
		return "", errors.New("hostnameOverride and the name of the host are empty, so that there is no name for the " +
			"node")
	}
	return name, nil
}

// RunOptions returns the options of kubeproxy.Run from a valid configuration: the intervals. The caller adds the feed,
// the sink, metrics and health.
func RunOptions(c *v1alpha2.KubeProxyConfiguration) kubeproxy.Options {
	o := kubeproxy.Options{RetryInterval: c.SyncPeriod.Duration}
	if c.MinSyncPeriod != nil {
		o.MinInterval = c.MinSyncPeriod.Duration
		if o.MinInterval == 0 {
			o.MinInterval = -1 // 0 means none in the configuration, but the default here
		}
	}
	// Kube-proxy's other modes rewrite all rules once an hour, which is Run's default.
	if c.Mode == v1alpha2.ProxyModeIPVS || c.Mode == v1alpha2.ProxyModeKernelspace {
		o.ResyncInterval = c.SyncPeriod.Duration
	}
	return o
}

// StateOptions returns the options of the node-local state from a valid configuration, for State and Cluster of
// kubeproxy.LocalFeed; with a brain, for State of remote.Options.
func StateOptions(c *v1alpha2.KubeProxyConfiguration, nodeName string,
	node NodeIPs) (localstate.Options, localstate.ClusterOptions, []Warning, error) {
	var cluster localstate.ClusterOptions
	detect, warnings, err := detectLocal(c, node)
	if err != nil {
		return localstate.Options{}, cluster, nil, err
	}
	gates, err := Gates(c)
	if err != nil {
		return localstate.Options{}, cluster, nil, err
	}
	cluster.NoExternalIPs = !gates.Enabled(AllowServiceExternalIPs)
	warnings = append(warnings, nodePortWarnings(c, node.Families)...)
	var override []netip.Addr // only these: the Node object may change others
	for _, text := range c.NodeIPOverride {
		// The loopback address means "unknown".
		ip, err := lenient.Addr(text)
		if err == nil && !ip.IsLoopback() && slices.Contains(node.Families, model.FamilyOf(ip)) {
			override = append(override, ip)
		}
	}
	return localstate.Options{
		NodeIPs:       override,
		NodeName:      nodeName,
		Families:      node.Families,
		MasqueradeAll: c.Linux.MasqueradeAll,
		DetectLocal:   detect,
	}, cluster, warnings, nil
}

// ExcludeCIDRs returns the address ranges of IPVS virtual servers that belong to other programs (ipvs.excludeCIDRs).
func ExcludeCIDRs(c *v1alpha2.KubeProxyConfiguration) ([]netip.Prefix, error) {
	return parseCIDRs("ipvs.excludeCIDRs", c.IPVS.ExcludeCIDRs)
}

// detectLocal returns the options for detecting local traffic (S30). A family without a CIDR has no detector. That
// causes a warning for the primary family. CIDRs of a family that is not served are an error.
func detectLocal(c *v1alpha2.KubeProxyConfiguration, node NodeIPs) (localstate.DetectLocal, []Warning, error) {
	var d localstate.DetectLocal
	var w warnings
	switch c.DetectLocalMode {
	case "", v1alpha2.LocalModeClusterCIDR:
		cidrs, err := parseCIDRs("detectLocal.clusterCIDRs", c.DetectLocal.ClusterCIDRs)
		if err != nil {
			return d, nil, err
		}
		d.ClusterCIDRs = cidrs
		if !slices.ContainsFunc(cidrs, func(cidr netip.Prefix) bool {
			return model.FamilyOf(cidr.Addr()) == node.Primary
		}) {
			hardFail := c.ConfigHardFail == nil || *c.ConfigHardFail
			if len(cidrs) > 0 && len(node.Families) == 1 && hardFail {
				return d, nil, fmt.Errorf("detectLocal.clusterCIDRs: %v, but this node serves %v only", cidrs,
					node.Primary)
			}
			w.add("detectLocal.clusterCIDRs", "no CIDR of the primary IP family, %v; local traffic of that family is "+
				"not detected", node.Primary)
		}
	case v1alpha2.LocalModeNodeCIDR:
		d.NodeCIDR = true
	case v1alpha2.LocalModeBridgeInterface:
		d.Bridge = c.DetectLocal.BridgeInterface
	case v1alpha2.LocalModeInterfaceNamePrefix:
		d.InterfacePrefix = c.DetectLocal.InterfaceNamePrefix
	default:
		return d, nil, fmt.Errorf("detectLocalMode: %q is not one of %v", c.DetectLocalMode, localModes())
	}
	return d, w, nil
}

// NodePortAddresses returns the choice of host addresses that serve node ports (S35). As in kube-proxy an empty list
// means the node's own IPs in mode nftables and all addresses in the others.
func NodePortAddresses(c *v1alpha2.KubeProxyConfiguration) (nodeaddr.Choice, error) {
	if len(c.NodePortAddresses) == 0 && c.Mode == v1alpha2.ProxyModeNFTables {
		return nodeaddr.Choice{Primary: true}, nil
	}
	return nodeaddr.Parse(c.NodePortAddresses)
}

// nodePortWarnings warns about families that nodePortAddresses does not cover: a list such as 127.0.0.0/8 leaves node
// ports open on all IPv6 addresses.
func nodePortWarnings(c *v1alpha2.KubeProxyConfiguration, families []model.Family) []Warning {
	choice, err := NodePortAddresses(c)
	if err != nil || len(c.NodePortAddresses) == 0 {
		return nil
	}
	var warnings []Warning
	for _, f := range families {
		everything := func(p netip.Prefix) bool { return p.Bits() == 0 && model.FamilyOf(p.Addr()) == f }
		if choice.All(f) && !slices.ContainsFunc(choice.CIDRs, everything) {
			warnings = append(warnings, Warning{Field: "nodePortAddresses",
				Message: fmt.Sprintf("has no %v entry: node ports are served on all %v addresses of the node", f, f)})
		}
	}
	return warnings
}

func parseCIDRs(path string, list []string) ([]netip.Prefix, error) {
	var cidrs []netip.Prefix
	var errs []error
	for i, text := range list {
		if cidr, err := lenient.Prefix(text); err == nil {
			cidrs = append(cidrs, cidr)
		} else {
			errs = append(errs, fmt.Errorf("%s: %w", elementOf(path, i), err))
		}
	}
	return cidrs, errors.Join(errs...)
}

// MasqueradeMark returns the packet mark for masquerading, in the configured mode (S31).
func MasqueradeMark(c *v1alpha2.KubeProxyConfiguration) uint32 {
	bit := c.IPTables.MasqueradeBit
	switch c.Mode {
	case v1alpha2.ProxyModeIPVS:
		bit = c.IPVS.MasqueradeBit
	case v1alpha2.ProxyModeNFTables:
		bit = c.NFTables.MasqueradeBit
	}
	if bit == nil || *bit < 0 || *bit > 31 {
		return 1 << 14
	}
	return 1 << *bit
}
