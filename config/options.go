package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

// NodeName returns the name of this node's Node object: hostnameOverride, or else the name of the host; in lower case,
// as the names of objects are.
func NodeName(c *v1alpha2.KubeProxyConfiguration, hostname string) (string, error) {
	name := strings.ToLower(strings.TrimSpace(cmp.Or(c.HostnameOverride, hostname)))
	if name == "" {
		return "", errors.New("hostnameOverride and the name of the host are empty, so that there is no name for the " +
			"node")
	}
	return name, nil
}

// RunOptions returns the options of kubeproxy.Run that follow from a valid configuration: the intervals. The caller adds
// the feed, the sink, metrics and health.
func RunOptions(c *v1alpha2.KubeProxyConfiguration) kubeproxy.Options {
	o := kubeproxy.Options{RetryInterval: c.SyncPeriod.Duration}
	if c.MinSyncPeriod != nil {
		o.MinInterval = c.MinSyncPeriod.Duration
		if o.MinInterval == 0 {
			o.MinInterval = -1 // there: none; 0 is its default
		}
	}
	// Kube-proxy's other two modes write all of their rules once an hour, which is Run's default.
	if c.Mode == v1alpha2.ProxyModeIPVS || c.Mode == v1alpha2.ProxyModeKernelspace {
		o.ResyncInterval = c.SyncPeriod.Duration
	}
	return o
}

// StateOptions returns the options of the node-local state that follow from a valid configuration: for State and
// Cluster of kubeproxy.LocalFeed; or, of a node with a brain, for the State of remote.Options.
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
	var override []netip.Addr // only these: others are the Node object's to change
	for _, text := range c.NodeIPOverride {
		// Loopback stands for "not known".
		if ip, err := lenient.Addr(text); err == nil && !ip.IsLoopback() && slices.Contains(node.Families, model.FamilyOf(ip)) {
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

// ExcludeCIDRs returns the addresses whose IPVS virtual servers are not this program's (ipvs.excludeCIDRs).
func ExcludeCIDRs(c *v1alpha2.KubeProxyConfiguration) ([]netip.Prefix, error) {
	return parseCIDRs("ipvs.excludeCIDRs", c.IPVS.ExcludeCIDRs)
}

// detectLocal says how to detect local traffic (S30). A family without a CIDR has no detector. That is worth a warning
// for the primary one; where it is the only one, CIDRs of the other family are a mistake in the configuration.
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

// NodePortAddresses returns which of the host's addresses serve node ports (S35). As in kube-proxy a list that is empty
// means the node's own IPs in mode nftables and all addresses in the others.
func NodePortAddresses(c *v1alpha2.KubeProxyConfiguration) (nodeaddr.Choice, error) {
	if len(c.NodePortAddresses) == 0 && c.Mode == v1alpha2.ProxyModeNFTables {
		return nodeaddr.Choice{Primary: true}, nil
	}
	return nodeaddr.Parse(c.NodePortAddresses)
}

// nodePortWarnings names the families that nodePortAddresses says nothing about: a list such as 127.0.0.0/8 leaves node
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

// MasqueradeMark returns the packet mark of packets to masquerade, in the mode of the configuration (S31).
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
