package config

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

type kpc = v1alpha2.KubeProxyConfiguration

func TestValidate(t *testing.T) {
	const badNodePortAddress = `must be a CIDR, "primary", "localhost" or "all"`

	const badCIDR = "must be a CIDR, such as 10.100.0.0/16 or fde4:8dba:82e1::/48"
	minus := metav1.Duration{Duration: -time.Second}
	for name, tc := range map[string]struct {
		change func(*kpc)
		goos   string // default: linux
		want   []string
	}{
		"the defaults are valid":                 {change: func(*kpc) {}},
		"the defaults are valid on Windows, too": {change: func(*kpc) {}, goos: "windows"},

		"iptables is a mode":               {change: func(c *kpc) { c.Mode = "iptables" }},
		"ipvs is a mode":                   {change: func(c *kpc) { c.Mode = "ipvs" }},
		"nftables is a mode":               {change: func(c *kpc) { c.Mode = "nftables" }},
		"kernelspace is a mode on Windows": {change: func(c *kpc) { c.Mode = "kernelspace" }, goos: "windows"},
		"modes of Linux are invalid on Windows": {func(c *kpc) { c.Mode = "nftables" },
			"windows", []string{`mode: Unsupported value: "nftables": supported values: "kernelspace"`}},
		"the mode of Windows is invalid on Linux": {func(c *kpc) { c.Mode = "kernelspace" },
			"", []string{`mode: Unsupported value: "kernelspace": supported values: "iptables", "ipvs", "nftables"`}},
		"macOS has the modes of Linux": {change: func(c *kpc) { c.Mode = "nftables" }, goos: "darwin"},

		"the burst is not negative": {func(c *kpc) { c.ClientConnection.Burst = -1 }, "",
			[]string{"clientConnection.burst: Invalid value: -1: must be at least 0"}},

		"a healthz address can be empty: it is not served": {change: func(c *kpc) { c.HealthzBindAddress = "" }},
		"a healthz address has a port": {func(c *kpc) { c.HealthzBindAddress = "::1" }, "",
			[]string{
				`healthzBindAddress: Invalid value: "::1": must be an IP address and a port, such as 0.0.0.0:10256 or [::]:10256`}},
		"a metrics address is not empty": {func(c *kpc) { c.MetricsBindAddress = "" }, "",
			[]string{
				`metricsBindAddress: Invalid value: "": must be an IP address and a port, such as 0.0.0.0:10256 or [::]:10256`}},
		"a metrics address is an IP and a port number": {func(c *kpc) { c.MetricsBindAddress = "localhost:65536" }, "",
			[]string{
				`metricsBindAddress: Invalid value: "localhost:65536": "localhost" must be an IP address`,
				`metricsBindAddress: Invalid value: "localhost:65536": port "65536" must be a number from 1 to 65535`,
			}},
		"port 0 is invalid": {func(c *kpc) { c.HealthzBindAddress = "0.0.0.0:0" }, "",
			[]string{`healthzBindAddress: Invalid value: "0.0.0.0:0": port "0" must be a number from 1 to 65535`}},
		"the port is a number": {func(c *kpc) { c.HealthzBindAddress = "[::]:http" }, "",
			[]string{`healthzBindAddress: Invalid value: "[::]:http": port "http" must be a number from 1 to 65535`}},
		"leading zeros are decimal": {change: func(c *kpc) { c.HealthzBindAddress = "010.0.0.1:80" }},

		"a version has two numbers": {change: func(c *kpc) { c.ShowHiddenMetricsForVersion = "1.36" }},
		"a version has no more than that": {func(c *kpc) { c.ShowHiddenMetricsForVersion = "v1.36.1" }, "",
			[]string{
				`showHiddenMetricsForVersion: Invalid value: "v1.36.1": must be a major and a minor version, such as 1.36`}},

		"periods are more than 0": {func(c *kpc) { c.ConfigSyncPeriod, c.SyncPeriod = minus, metav1.Duration{} }, "",
			[]string{
				`configSyncPeriod: Invalid value: "-1s": must be greater than 0`,
				`syncPeriod: Invalid value: "0s": must be greater than 0`,
			}},
		"the minimum period can be 0": {change: func(c *kpc) { c.MinSyncPeriod = &metav1.Duration{} }},
		"the minimum period is not negative": {func(c *kpc) { c.MinSyncPeriod = &minus },
			"", []string{`minSyncPeriod: Invalid value: "-1s": must be at least 0`}},
		"the minimum period can be the period": {change: func(c *kpc) { c.MinSyncPeriod = &c.SyncPeriod }},
		"the minimum period is not more than the period": {func(c *kpc) {
			c.MinSyncPeriod = &metav1.Duration{Duration: time.Minute}
		}, "",
			[]string{
				`minSyncPeriod: Invalid value: "1m0s": must not exceed syncPeriod, 30s`,
				`syncPeriod: Invalid value: "30s": must not be less than minSyncPeriod, 1m0s`,
			}},

		"masquerade bits are from 0": {change: func(c *kpc) { c.IPTables.MasqueradeBit = ptr.To[int32](0) }},
		"masquerade bits are to 31":  {change: func(c *kpc) { c.IPTables.MasqueradeBit = ptr.To[int32](31) }},
		"the bit of iptables is looked at in every mode": {
			func(c *kpc) { c.Mode, c.IPTables.MasqueradeBit = "nftables", ptr.To[int32](-1) }, "",
			[]string{"iptables.masqueradeBit: Invalid value: -1: must be between 0 and 31"}},
		"the bit of ipvs is looked at in mode ipvs": {
			func(c *kpc) { c.Mode, c.IPVS.MasqueradeBit = "ipvs", ptr.To[int32](32) }, "",
			[]string{"ipvs.masqueradeBit: Invalid value: 32: must be between 0 and 31"}},
		"the bit of nftables is looked at in mode nftables": {
			func(c *kpc) { c.Mode, c.NFTables.MasqueradeBit = "nftables", ptr.To[int32](32) }, "",
			[]string{"nftables.masqueradeBit: Invalid value: 32: must be between 0 and 31"}},
		"what is for other modes is not looked at": {change: func(c *kpc) {
			c.Mode, c.NFTables.MasqueradeBit, c.IPVS.MasqueradeBit = "iptables", ptr.To[int32](32), ptr.To[int32](32)
			c.IPVS.TCPTimeout, c.IPVS.ExcludeCIDRs = minus, []string{"x"}
		}},

		"ipvs: timeouts are not negative": {func(c *kpc) {
			c.Mode, c.IPVS.TCPTimeout, c.IPVS.TCPFinTimeout, c.IPVS.UDPTimeout = "ipvs", minus, minus, minus
		}, "", []string{
			`ipvs.tcpTimeout: Invalid value: "-1s": must be at least 0`,
			`ipvs.tcpFinTimeout: Invalid value: "-1s": must be at least 0`,
			`ipvs.udpTimeout: Invalid value: "-1s": must be at least 0`,
		}},
		"ipvs: excluded CIDRs are CIDRs": {func(c *kpc) {
			c.Mode, c.IPVS.ExcludeCIDRs = "ipvs", []string{"10.0.0.0/8", "10.0.0.1"}
		}, "",
			[]string{`ipvs.excludeCIDRs[1]: Invalid value: "10.0.0.1": ` + badCIDR}},

		"oomScoreAdj is from -1000 to 1000": {change: func(c *kpc) { c.Linux.OOMScoreAdj = ptr.To[int32](-1000) }},
		"oomScoreAdj is not less": {func(c *kpc) { c.Linux.OOMScoreAdj = ptr.To[int32](-1001) }, "",
			[]string{"linux.oomScoreAdj: Invalid value: -1001: must be between -1000 and 1000"}},
		"oomScoreAdj is not more": {func(c *kpc) { c.Linux.OOMScoreAdj = ptr.To[int32](1001) }, "",
			[]string{"linux.oomScoreAdj: Invalid value: 1001: must be between -1000 and 1000"}},
		"nothing of conntrack is negative": {func(c *kpc) {
			c.Linux.Conntrack = v1alpha2.ConntrackConfiguration{
				MaxPerCore: ptr.To[int32](-1), Min: ptr.To[int32](-2), TCPEstablishedTimeout: &minus,
				TCPCloseWaitTimeout: &minus, UDPTimeout: minus, UDPStreamTimeout: minus,
			}
		}, "", []string{
			"linux.conntrack.maxPerCore: Invalid value: -1: must be at least 0",
			"linux.conntrack.min: Invalid value: -2: must be at least 0",
			`linux.conntrack.tcpEstablishedTimeout: Invalid value: "-1s": must be at least 0`,
			`linux.conntrack.tcpCloseWaitTimeout: Invalid value: "-1s": must be at least 0`,
			`linux.conntrack.udpTimeout: Invalid value: "-1s": must be at least 0`,
			`linux.conntrack.udpStreamTimeout: Invalid value: "-1s": must be at least 0`,
		}},
		"conntrack can be 0": {change: func(c *kpc) {
			c.Linux.Conntrack.MaxPerCore, c.Linux.Conntrack.Min = ptr.To[int32](0), ptr.To[int32](0)
			c.Linux.Conntrack.TCPEstablishedTimeout, c.Linux.Conntrack.TCPCloseWaitTimeout = &metav1.Duration{},
				&metav1.Duration{}
		}},

		"a node has an IP of each family": {change: func(c *kpc) {
			c.NodeIPOverride = []string{"2001:db8::1", "192.0.2.1"}
		}},
		"a node has not two IPs of one family": {func(c *kpc) {
			c.NodeIPOverride = []string{"192.0.2.1", "::ffff:192.0.2.2"}
		}, "",
			[]string{
				`nodeIPOverride[1]: Invalid value: "::ffff:192.0.2.2": duplicate IPv4 address: a node has one primary IP ` +
					`for each family`}},
		"a node's IPs are IPs": {func(c *kpc) { c.NodeIPOverride = []string{"node-1", "192.0.2.1/24", ""} }, "",
			[]string{
				`nodeIPOverride[0]: Invalid value: "node-1": must be an IP address`,
				`nodeIPOverride[1]: Invalid value: "192.0.2.1/24": must be an IP address`,
				`nodeIPOverride[2]: Invalid value: "": must be an IP address`,
			}},
		"a node's IP is not unspecified": {func(c *kpc) { c.NodeIPOverride = []string{"0.0.0.0", "::"} }, "",
			[]string{
				`nodeIPOverride[0]: Invalid value: "0.0.0.0": must be a valid node address`,
				`nodeIPOverride[1]: Invalid value: "::": must be a valid node address`,
			}},
		"SingleStack has one IP": {change: func(c *kpc) {
			c.IPFamilyPolicy, c.NodeIPOverride = "SingleStack", []string{"192.0.2.1"}
		}},
		"SingleStack has no second IP": {func(c *kpc) {
			c.IPFamilyPolicy, c.NodeIPOverride = "SingleStack", []string{"192.0.2.1", "2001:db8::1"}
		}, "",
			[]string{
				`nodeIPOverride[1]: Invalid value: "2001:db8::1": ipFamilyPolicy is SingleStack, and an IPv4 address precedes it`}},
		"PreferDualStack is a policy":  {change: func(c *kpc) { c.IPFamilyPolicy = "PreferDualStack" }},
		"RequireDualStack is a policy": {change: func(c *kpc) { c.IPFamilyPolicy = "RequireDualStack" }},
		"DualStack is none": {func(c *kpc) { c.IPFamilyPolicy = "DualStack" }, "",
			[]string{
				`ipFamilyPolicy: Unsupported value: "DualStack": supported values: "SingleStack", "PreferDualStack", ` +
					`"RequireDualStack"`}},

		"primary stands for the node's IPs": {change: func(c *kpc) { c.NodePortAddresses = []string{"primary"} }},
		"node ports are served in many CIDRs": {change: func(c *kpc) {
			c.NodePortAddresses = []string{"10.0.0.0/8", "192.0.2.0/24", "::/0"}
		}},
		"keywords and CIDRs go together": {change: func(c *kpc) {
			c.NodePortAddresses = []string{v1alpha2.NodePortAddressesPrimary, "10.0.0.0/8",
				v1alpha2.NodePortAddressesLocalhost, v1alpha2.NodePortAddressesAll, "10.0.0.0/8", "010.0.0.0/8"}
		}},
		"a keyword is in the list once": {func(c *kpc) {
			c.NodePortAddresses = []string{"primary", "all", "primary", "localhost", "primary", "all"}
		}, "", []string{`nodePortAddresses[2]: Duplicate value: "primary"`,
			`nodePortAddresses[4]: Duplicate value: "primary"`, `nodePortAddresses[5]: Duplicate value: "all"`}},
		"node port addresses are CIDRs or keywords": {func(c *kpc) {
			c.NodePortAddresses = []string{"10.0.0.1", "10.0.0.0/8", "eth0", "Localhost", " 10.0.0.0/8"}
		}, "", []string{`nodePortAddresses[0]: Invalid value: "10.0.0.1": ` + badNodePortAddress,
			`nodePortAddresses[2]: Invalid value: "eth0": ` + badNodePortAddress,
			`nodePortAddresses[3]: Invalid value: "Localhost": ` + badNodePortAddress,
			`nodePortAddresses[4]: Invalid value: " 10.0.0.0/8": ` + badNodePortAddress}},

		"ClusterCIDR needs none": {change: func(c *kpc) { c.DetectLocalMode = "ClusterCIDR" }},
		"ClusterCIDR takes one of each family": {change: func(c *kpc) {
			c.DetectLocal.ClusterCIDRs = []string{"fd00::/8", "10.0.0.0/8"}
		}},
		"ClusterCIDR takes no two of a family": {func(c *kpc) {
			c.DetectLocal.ClusterCIDRs = []string{"10.0.0.0/8", "fd00::/8", "11.0.0.0/8", "fd01::/16"}
		}, "",
			[]string{
				`detectLocal.clusterCIDRs[2]: Invalid value: "11.0.0.0/8": duplicate IPv4 CIDR: at most one for each family`,
				`detectLocal.clusterCIDRs[3]: Invalid value: "fd01::/16": duplicate IPv6 CIDR: at most one for each family`,
			}},
		"ClusterCIDR takes CIDRs": {func(c *kpc) { c.DetectLocal.ClusterCIDRs = []string{"10.0.0.0", " fd00::/8"} }, "",
			[]string{`detectLocal.clusterCIDRs[0]: Invalid value: "10.0.0.0": ` + badCIDR,
				`detectLocal.clusterCIDRs[1]: Invalid value: " fd00::/8": ` + badCIDR}},
		"clusterCIDRs are not looked at in another mode": {
			change: func(c *kpc) { c.DetectLocalMode, c.DetectLocal.ClusterCIDRs = "NodeCIDR", []string{"x"} }},
		"BridgeInterface has a bridge": {
			change: func(c *kpc) { c.DetectLocalMode, c.DetectLocal.BridgeInterface = "BridgeInterface", "cbr0" }},
		"BridgeInterface needs one": {func(c *kpc) {
			c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "BridgeInterface", "veth"
		}, "",
			[]string{
				`detectLocalMode: Invalid value: "BridgeInterface": needs detectLocal.bridgeInterface, which is empty`}},
		"InterfaceNamePrefix has a prefix": {change: func(c *kpc) {
			c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = "InterfaceNamePrefix", "veth"
		}},
		"InterfaceNamePrefix needs one": {func(c *kpc) {
			c.DetectLocalMode, c.DetectLocal.BridgeInterface = "InterfaceNamePrefix", "cbr0"
		}, "",
			[]string{
				`detectLocalMode: Invalid value: "InterfaceNamePrefix": needs detectLocal.interfaceNamePrefix, which is empty`}},
		"PodCIDR is no way to detect": {func(c *kpc) { c.DetectLocalMode = "PodCIDR" }, "",
			[]string{
				`detectLocalMode: Unsupported value: "PodCIDR": supported values: "ClusterCIDR", "NodeCIDR", ` +
					`"BridgeInterface", "InterfaceNamePrefix"`}},

		"the logging section is looked at": {func(c *kpc) {
			c.Logging.Format, c.Logging.FlushFrequency.Duration = "xml", minus
		}, "",
			[]string{
				`logging.flushFrequency: Invalid value: "-1s": Must be greater than zero`,
				`logging.format: Invalid value: "xml": Unsupported log format`,
			}},
		"alpha options of logging need their feature gate": {func(c *kpc) { c.Logging.Options.Text.SplitStream = true },
			"",
			[]string{"logging.options.text.splitStream: Forbidden: Feature LoggingAlphaOptions is disabled"}},
		"alpha options of logging are valid with their feature gate": {change: func(c *kpc) {
			c.Logging.Options.Text.SplitStream, c.FeatureGates = true,
				map[string]bool{"LoggingAlphaOptions": true, "NotKnown": true}
		}},

		"mode ipvs needs its feature gate": {func(c *kpc) {
			c.Mode, c.FeatureGates = "ipvs", map[string]bool{"KubeProxyIPVS": false}
		}, "",
			[]string{`mode: Unsupported value: "ipvs": supported values: "iptables", "nftables"`}},
		"the gate of mode ipvs concerns no other mode": {change: func(c *kpc) {
			c.Mode, c.FeatureGates = "nftables", map[string]bool{"KubeProxyIPVS": false}
		}},
		"mode ipvs is neither alpha nor beta": {change: func(c *kpc) {
			c.Mode, c.FeatureGates = "ipvs", map[string]bool{"AllAlpha": false, "AllBeta": false}
		}},
		"a gate that is locked cannot be set": {func(c *kpc) {
			c.FeatureGates = map[string]bool{"WinDSR": false, "NFTablesProxyMode": false, "WinOverlay": true,
				"PreferSameTrafficDistribution": true}
		}, "",
			[]string{
				`featureGates.NFTablesProxyMode: Invalid value: false: cannot be changed: it is always true`,
				`featureGates.WinDSR: Invalid value: false: cannot be changed: it is always true`,
			}},
	} {
		t.Run(name, func(t *testing.T) {
			c := v1alpha2.Default()
			tc.change(c)
			if tc.goos == "" {
				tc.goos = "linux"
			}
			var got []string
			for _, err := range validate(c, tc.goos) {
				got = append(got, err.Error())
			}
			assert.Equal(t, tc.want, got)
		})
	}
}

func TestValidateTakesWhatHasNoDefaults(t *testing.T) {
	assert.Len(t, Validate(&kpc{}), 5, "metricsBindAddress, two periods, and two of logging")
}
