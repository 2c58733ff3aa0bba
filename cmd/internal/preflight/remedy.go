package preflight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// remedy returns what keeps the earlier behaviour under a rule, if a setting of the new proxy does, as flags to add to
// its own where there are such flags.
func remedy(rule string, from, to *v1alpha2.KubeProxyConfiguration) string {
	switch rule {
	case "S6":
		if on := enabled(from, config.AllowServiceExternalIPs); on != enabled(to, config.AllowServiceExternalIPs) {
			return gate(config.AllowServiceExternalIPs, on)
		}
	case "S28", "S29", "S30":
		return strings.Join(slices.DeleteFunc([]string{masqueradeAll(from, to), detectLocal(from, to)},
			func(flags string) bool { return flags == "" }), " ")
	case "S35", "S38":
		if list := nodePortAddresses(from); !slices.Equal(list, nodePortAddresses(to)) {
			return "nodePortAddresses as before (--nodeport-addresses=" + strings.Join(list, ",") + ")"
		}
	case "S36", "S36a":
		return localhostNodePorts(from, to)
	case "S49":
		if policy := familyPolicy(from); policy != familyPolicy(to) {
			return fmt.Sprintf("ipFamilyPolicy: %s in a configuration file of version v1alpha2", policy)
		}
	case "S57":
		if to.Mode == v1alpha2.ProxyModeIPVS { // no other mode has schedulers
			return "--ipvs-scheduler=" + scheduler(from)
		}
	case "S59":
		return "let only one of them have the address"
	case "S60", "frontend.Limits":
		return "--service-limits and --namespace-limits of the new proxy"
	}
	return ""
}

func enabled(c *v1alpha2.KubeProxyConfiguration, f featuregate.Feature) bool {
	gates, err := config.Gates(c)
	return err == nil && gates.Enabled(f)
}

func gate(f featuregate.Feature, on bool) string { return fmt.Sprintf("--feature-gates=%s=%t", f, on) }

func masqueradeAll(from, to *v1alpha2.KubeProxyConfiguration) string {
	if from.Linux.MasqueradeAll == to.Linux.MasqueradeAll {
		return ""
	}
	return fmt.Sprintf("--masquerade-all=%t", from.Linux.MasqueradeAll)
}

// detectLocal returns the flags with which a proxy detects local pods as another one does.
func detectLocal(from, to *v1alpha2.KubeProxyConfiguration) string {
	flags := func(c *v1alpha2.KubeProxyConfiguration) string {
		mode := cmp.Or(c.DetectLocalMode, v1alpha2.LocalModeClusterCIDR)
		text := "--detect-local-mode=" + string(mode)
		switch mode {
		case v1alpha2.LocalModeClusterCIDR:
			text += " --cluster-cidr=" + strings.Join(c.DetectLocal.ClusterCIDRs, ",")
		case v1alpha2.LocalModeBridgeInterface:
			text += " --pod-bridge-interface=" + c.DetectLocal.BridgeInterface
		case v1alpha2.LocalModeInterfaceNamePrefix:
			text += " --pod-interface-name-prefix=" + c.DetectLocal.InterfaceNamePrefix
		}
		return text
	}
	if flags(from) == flags(to) {
		return ""
	}
	return flags(from)
}

// nodePortAddresses returns the value of nodePortAddresses that a proxy has, or its mode's default.
func nodePortAddresses(c *v1alpha2.KubeProxyConfiguration) []string {
	switch {
	case len(c.NodePortAddresses) > 0:
		return c.NodePortAddresses
	case c.Mode == v1alpha2.ProxyModeNFTables:
		return []string{"primary"}
	}
	return []string{"all"}
}

// localhostNodePorts returns the flags with which a proxy serves node ports on 127.0.0.1, or does not, as another one
// does.
func localhostNodePorts(from, to *v1alpha2.KubeProxyConfiguration) string {
	const feature = config.KubeProxyNFTablesLocalhostNodePorts
	option := func(c *v1alpha2.KubeProxyConfiguration) bool {
		return c.Mode == v1alpha2.ProxyModeIPTables && *c.IPTables.LocalhostNodePorts ||
			c.Mode == v1alpha2.ProxyModeNFTables && enabled(c, feature)
	}
	chosen := func(c *v1alpha2.KubeProxyConfiguration) bool {
		choice, err := config.NodePortAddresses(c)
		return err == nil && choice.Loopback()
	}
	served := option(from) && chosen(from)
	if served == (option(to) && chosen(to)) {
		return ""
	}
	var flags []string
	if served != option(to) {
		switch to.Mode {
		case v1alpha2.ProxyModeIPTables:
			flags = append(flags, fmt.Sprintf("--iptables-localhost-nodeports=%t", served))
		case v1alpha2.ProxyModeNFTables:
			flags = append(flags, gate(feature, served))
		default:
			return "" // mode ipvs cannot
		}
	}
	if served && !chosen(to) {
		flags = append(flags, "--nodeport-addresses="+strings.Join(append(slices.Clip(nodePortAddresses(to)), "localhost"),
			","))
	}
	return strings.Join(flags, " ")
}

// familyPolicy returns the policy that a proxy has.
func familyPolicy(c *v1alpha2.KubeProxyConfiguration) v1alpha2.IPFamilyPolicy {
	return cmp.Or(c.IPFamilyPolicy, v1alpha2.IPFamilyPolicyPreferDualStack)
}

// scheduler returns the scheduler that a proxy has, or one of IPVS that chooses as it does.
func scheduler(c *v1alpha2.KubeProxyConfiguration) string {
	if c.Mode == v1alpha2.ProxyModeIPVS {
		return cmp.Or(c.IPVS.Scheduler, "rr")
	}
	return "rr"
}
