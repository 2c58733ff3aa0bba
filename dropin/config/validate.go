package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	logsapi "k8s.io/component-base/logs/api/v1"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/internal/lenient"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

// Validate returns all problems of a configuration with defaults. As in kube-proxy, a mode's fields are checked only in
// that mode, and the valid modes depend on the operating system; ipvs is valid unless its feature gate is off. Unknown
// feature gates are not reported: only the program knows whether they are its own.
//
// Logging format "json" is valid in a program that imports k8s.io/component-base/logs/json/register.
func Validate(c *v1alpha2.KubeProxyConfiguration) field.ErrorList {
	return validate(c, runtime.GOOS)
}

func validate(c *v1alpha2.KubeProxyConfiguration, goos string) field.ErrorList {
	v := &validator{}
	gates, err := v.featureGates(c)
	if err != nil {
		return append(v.errs, field.InternalError(field.NewPath("featureGates"), err))
	}
	v.mode(c.Mode, goos, gates.Enabled(KubeProxyIPVS))

	v.atLeast("clientConnection.burst", &c.ClientConnection.Burst, 0)
	if c.HealthzBindAddress != "" {
		v.bindAddress("healthzBindAddress", c.HealthzBindAddress)
	}
	v.bindAddress("metricsBindAddress", c.MetricsBindAddress)
	v.version("showHiddenMetricsForVersion", c.ShowHiddenMetricsForVersion)

	v.moreThanZero("configSyncPeriod", c.ConfigSyncPeriod.Duration)
	v.periods(c)

	v.masqueradeBit("iptables.masqueradeBit", c.IPTables.MasqueradeBit)
	switch c.Mode {
	case v1alpha2.ProxyModeIPVS:
		v.ipvs(&c.IPVS)
	case v1alpha2.ProxyModeNFTables:
		v.masqueradeBit("nftables.masqueradeBit", c.NFTables.MasqueradeBit)
	}
	v.linux(&c.Linux)

	v.nodeIPs(c)
	v.nodePortAddresses("nodePortAddresses", c.NodePortAddresses)
	v.detectLocal(c)

	v.errs = append(v.errs, logsapi.Validate(&c.Logging, gates, field.NewPath("logging"))...)
	return v.errs
}

// validator collects problems.
type validator struct{ errs field.ErrorList }

func (v *validator) invalid(path string, value any, format string, args ...any) {
	v.errs = append(v.errs, &field.Error{Type: field.ErrorTypeInvalid, Field: path, BadValue: value,
		Detail: fmt.Sprintf(format, args...)})
}

func (v *validator) mode(mode v1alpha2.ProxyMode, goos string, ipvs bool) {
	modes := []v1alpha2.ProxyMode{v1alpha2.ProxyModeIPTables, v1alpha2.ProxyModeIPVS, v1alpha2.ProxyModeNFTables}
	if !ipvs {
		modes = slices.DeleteFunc(modes, func(m v1alpha2.ProxyMode) bool { return m == v1alpha2.ProxyModeIPVS })
	}
	if goos == "windows" {
		modes = []v1alpha2.ProxyMode{v1alpha2.ProxyModeKernelspace}
	}
	if mode != "" && !slices.Contains(modes, mode) {
		v.errs = append(v.errs, field.NotSupported(field.NewPath("mode"), mode, modes))
	}
}

func (v *validator) atLeast(path string, value *int32, least int32) {
	if value != nil && *value < least {
		v.invalid(path, *value, "must be at least %d", least)
	}
}

func (v *validator) between(path string, value *int32, least, most int32) {
	if value != nil && (*value < least || *value > most) {
		v.invalid(path, *value, "must be between %d and %d", least, most)
	}
}

func (v *validator) masqueradeBit(path string, bit *int32) { v.between(path, bit, 0, 31) }

func (v *validator) moreThanZero(path string, d time.Duration) bool {
	if d <= 0 {
		v.invalid(path, d.String(), "must be greater than 0")
	}
	return d > 0
}

func (v *validator) notNegative(path string, d *metav1.Duration) bool {
	valid := d == nil || d.Duration >= 0
	if !valid {
		v.invalid(path, d.Duration.String(), "must be at least 0")
	}
	return valid
}

// periods checks the sync periods. If two are inconsistent, both are named, because either can be wrong.
func (v *validator) periods(c *v1alpha2.KubeProxyConfiguration) {
	valid := v.moreThanZero("syncPeriod", c.SyncPeriod.Duration)
	if c.MinSyncPeriod == nil {
		return
	}
	least, most := c.MinSyncPeriod.Duration, c.SyncPeriod.Duration
	if v.notNegative("minSyncPeriod", c.MinSyncPeriod) && valid && least > most {
		v.invalid("minSyncPeriod", least.String(), "must not exceed syncPeriod, %v", most)
		v.invalid("syncPeriod", most.String(), "must not be less than minSyncPeriod, %v", least)
	}
}

func (v *validator) ipvs(c *v1alpha2.IPVSConfiguration) {
	v.masqueradeBit("ipvs.masqueradeBit", c.MasqueradeBit)
	v.notNegative("ipvs.tcpTimeout", &c.TCPTimeout)
	v.notNegative("ipvs.tcpFinTimeout", &c.TCPFinTimeout)
	v.notNegative("ipvs.udpTimeout", &c.UDPTimeout)
	for i, cidr := range c.ExcludeCIDRs {
		v.cidr(elementOf("ipvs.excludeCIDRs", i), cidr)
	}
}

func (v *validator) linux(c *v1alpha2.LinuxConfiguration) {
	v.between("linux.oomScoreAdj", c.OOMScoreAdj, -1000, 1000)
	conntrack := &c.Conntrack
	v.atLeast("linux.conntrack.maxPerCore", conntrack.MaxPerCore, 0)
	v.atLeast("linux.conntrack.min", conntrack.Min, 0)
	v.notNegative("linux.conntrack.tcpEstablishedTimeout", conntrack.TCPEstablishedTimeout)
	v.notNegative("linux.conntrack.tcpCloseWaitTimeout", conntrack.TCPCloseWaitTimeout)
	v.notNegative("linux.conntrack.udpTimeout", &conntrack.UDPTimeout)
	v.notNegative("linux.conntrack.udpStreamTimeout", &conntrack.UDPStreamTimeout)
}

func (v *validator) nodeIPs(c *v1alpha2.KubeProxyConfiguration) {
	policies := []v1alpha2.IPFamilyPolicy{v1alpha2.IPFamilyPolicySingleStack, v1alpha2.IPFamilyPolicyPreferDualStack,
		v1alpha2.IPFamilyPolicyRequireDualStack}
	if c.IPFamilyPolicy != "" && !slices.Contains(policies, c.IPFamilyPolicy) {
		v.errs = append(v.errs, field.NotSupported(field.NewPath("ipFamilyPolicy"), c.IPFamilyPolicy, policies))
	}
	seen := map[model.Family]bool{}
	for i, text := range c.NodeIPOverride {
		path := elementOf("nodeIPOverride", i)
		ip, err := lenient.Addr(text)
		family := model.FamilyOf(ip)
		switch {
		case err != nil:
			v.invalid(path, text, "must be an IP address")
			continue
		case ip.IsUnspecified():
			v.invalid(path, text, "must be a valid node address")
			continue
		case seen[family]:
			v.invalid(path, text, "duplicate %v address: a node has one primary IP for each family",
				family)
		case len(seen) > 0 && c.IPFamilyPolicy == v1alpha2.IPFamilyPolicySingleStack:
			v.invalid(path, text, "ipFamilyPolicy is SingleStack, and an %v address precedes it",
				otherFamily(family))
		}
		seen[family] = true
	}
}

func (v *validator) nodePortAddresses(path string, addresses []string) {
	var invalid nodeaddr.ParseError
	if _, err := nodeaddr.Parse(addresses); !errors.As(err, &invalid) {
		return
	}
	for _, e := range invalid {
		if e.Duplicate {
			v.errs = append(v.errs, field.Duplicate(field.NewPath(path).Index(e.Index), e.Text))
		} else {
			v.invalid(elementOf(path, e.Index), e.Text, "must be a CIDR, %q, %q or %q",
				v1alpha2.NodePortAddressesPrimary, v1alpha2.NodePortAddressesLocalhost, v1alpha2.NodePortAddressesAll)
		}
	}
}

func (v *validator) detectLocal(c *v1alpha2.KubeProxyConfiguration) {
	switch c.DetectLocalMode {
	case "", v1alpha2.LocalModeClusterCIDR:
		v.clusterCIDRs("detectLocal.clusterCIDRs", c.DetectLocal.ClusterCIDRs)
	case v1alpha2.LocalModeNodeCIDR:
	case v1alpha2.LocalModeBridgeInterface:
		if c.DetectLocal.BridgeInterface == "" {
			v.invalid("detectLocalMode", c.DetectLocalMode, "needs detectLocal.bridgeInterface, which is empty")
		}
	case v1alpha2.LocalModeInterfaceNamePrefix:
		if c.DetectLocal.InterfaceNamePrefix == "" {
			v.invalid("detectLocalMode", c.DetectLocalMode, "needs detectLocal.interfaceNamePrefix, which is empty")
		}
	default:
		v.errs = append(v.errs, field.NotSupported(field.NewPath("detectLocalMode"), c.DetectLocalMode, localModes()))
	}
}

func localModes() []v1alpha2.LocalMode {
	return []v1alpha2.LocalMode{v1alpha2.LocalModeClusterCIDR, v1alpha2.LocalModeNodeCIDR,
		v1alpha2.LocalModeBridgeInterface, v1alpha2.LocalModeInterfaceNamePrefix}
}

func (v *validator) clusterCIDRs(path string, cidrs []string) {
	seen := map[model.Family]bool{}
	for i, text := range cidrs {
		if cidr, ok := v.cidr(elementOf(path, i), text); ok {
			family := model.FamilyOf(cidr.Addr())
			if seen[family] {
				v.invalid(elementOf(path, i), text, "duplicate %v CIDR: at most one for each "+
					"family", family)
			}
			seen[family] = true
		}
	}
}

func (v *validator) cidr(path, text string) (netip.Prefix, bool) {
	cidr, err := lenient.Prefix(text)
	if err != nil {
		v.invalid(path, text, "must be a CIDR, such as 10.100.0.0/16 or fde4:8dba:82e1::/48")
	}
	return cidr, err == nil
}

func (v *validator) bindAddress(path, address string) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		v.invalid(path, address, "must be an IP address and a port, such as 0.0.0.0:10256 or [::]:10256")
		return
	}
	if _, err := lenient.Addr(host); err != nil {
		v.invalid(path, address, "%q must be an IP address", host)
	}
	if p, err := strconv.ParseUint(port, 10, 16); err != nil || p == 0 {
		v.invalid(path, address, "port %q must be a number from 1 to 65535", port)
	}
}

func (v *validator) version(path, version string) {
	if version != "" && !regexp.MustCompile(`^\d+\.\d+$`).MatchString(version) {
		v.invalid(path, version, "must be a major and a minor version, such as 1.36")
	}
}

func elementOf(list string, index int) string { return fmt.Sprintf("%s[%d]", list, index) }

func otherFamily(f model.Family) model.Family {
	if f == model.IPv4 {
		return model.IPv6
	}
	return model.IPv4
}
