package config_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

// The rows of KEP-784's tables, in both directions: what a fragment of a v1alpha1 file is in v1alpha2, beside what the
// defaults of v1alpha1 are there.
func TestRowsOfTheConversion(t *testing.T) {
	for name, row := range map[string]struct{ old, current string }{
		"moved to linux: conntrack": {
			"conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, tcpBeLiberal: " +
				"true, udpTimeout: 5s, udpStreamTimeout: 6s}",
			"linux: {conntrack: {maxPerCore: 1, min: 2, tcpEstablishedTimeout: 3s, tcpCloseWaitTimeout: 4s, " +
				"tcpBeLiberal: true, udpTimeout: 5s, udpStreamTimeout: 6s}}",
		},
		"moved to linux: oomScoreAdj": {"oomScoreAdj: -5", "linux: {oomScoreAdj: -5}"},
		"moved to linux: iptables.masqueradeAll": {"iptables: {masqueradeAll: true}",
			"linux: {masqueradeAll: true}"},
		"moved to linux: iptables.masqueradeAll, in mode ipvs": {"{mode: ipvs, iptables: {masqueradeAll: true}}",
			"{mode: ipvs, linux: {masqueradeAll: true}}"},
		"moved to linux: nftables.masqueradeAll": {"{mode: nftables, nftables: {masqueradeAll: true}}",
			"{mode: nftables, linux: {masqueradeAll: true}}"},
		"moved to the root: iptables.syncPeriod": {"iptables: {syncPeriod: 7s}", "syncPeriod: 7s"},
		"moved to the root: iptables.syncPeriod, kernelspace": {"{mode: kernelspace, iptables: {syncPeriod: 7s}}",
			"{mode: kernelspace, syncPeriod: 7s}"},
		"moved to the root: nftables.syncPeriod": {"{mode: nftables, nftables: {syncPeriod: 7s}}",
			"{mode: nftables, syncPeriod: 7s}"},
		"moved to the root: ipvs.syncPeriod": {"{mode: ipvs, ipvs: {syncPeriod: 7s}}",
			"{mode: ipvs, syncPeriod: 7s}"},
		"moved to the root: iptables.minSyncPeriod": {"iptables: {minSyncPeriod: 7s}",
			"minSyncPeriod: 7s"},
		"moved to the root: nftables.minSyncPeriod": {"{mode: nftables, nftables: {minSyncPeriod: 7s}}",
			"{mode: nftables, minSyncPeriod: 7s}"},
		"moved to the root: ipvs.minSyncPeriod": {"{mode: ipvs, ipvs: {minSyncPeriod: 7s}}",
			"{mode: ipvs, minSyncPeriod: 7s}"},
		"changed to a list: clusterCIDR, one": {"clusterCIDR: 10.0.0.0/8",
			"detectLocal: {clusterCIDRs: [10.0.0.0/8]}"},
		"changed to a list: clusterCIDR, two": {"clusterCIDR: 'fd00::/8,10.0.0.0/8'",
			"detectLocal: {clusterCIDRs: ['fd00::/8', 10.0.0.0/8]}"},
		"added: ipvs.masqueradeBit, that of iptables until then": {"{mode: ipvs, iptables: {masqueradeBit: 9}}",
			"{mode: ipvs, iptables: {masqueradeBit: 9}, ipvs: {masqueradeBit: 9}}"},
		"added: windows.runAsService": {"windowsRunAsService: true",
			"windows: {runAsService: true}"},
		"added: configHardFail, and files of v1alpha1 have it": {"{}", "configHardFail: true"},
		"new default: iptables.localhostNodePorts": {"iptables: {localhostNodePorts: false}",
			"iptables: {localhostNodePorts: false}"},
		"new default: bindAddressHardFail": {"bindAddressHardFail: true",
			"bindAddressHardFail: true"},
		"dropped: bindAddress, for nodeIPOverride": {"bindAddress: 192.0.2.1",
			"nodeIPOverride: [192.0.2.1]"},
		"dropped: bindAddress, IPv6": {"bindAddress: '2001:db8::1'",
			"{nodeIPOverride: ['2001:db8::1'], healthzBindAddress: '[::]:10256', metricsBindAddress: '[::1]:10249'}"},
		"dropped: bindAddress, which means nothing": {"bindAddress: 0.0.0.0", "{}"},

		"the same: featureGates": {"featureGates: {A: true, B: false}", "featureGates: {A: true, B: false}"},
		"the same: clientConnection": {
			"clientConnection: {kubeconfig: k, acceptContentTypes: a, contentType: c, qps: 1.5, burst: 2}",
			"clientConnection: {kubeconfig: k, acceptContentTypes: a, contentType: c, qps: 1.5, burst: 2}"},
		"the same: logging": {"logging: {verbosity: 3, flushFrequency: 1s}",
			"logging: {verbosity: 3, flushFrequency: 1s}"},
		"the same: hostnameOverride":   {"hostnameOverride: a", "hostnameOverride: a"},
		"the same: healthzBindAddress": {"healthzBindAddress: 10.0.0.1", "healthzBindAddress: 10.0.0.1:10256"},
		"the same: metricsBindAddress": {"metricsBindAddress: 10.0.0.1", "metricsBindAddress: 10.0.0.1:10249"},
		"the same: enableProfiling":    {"enableProfiling: true", "enableProfiling: true"},
		"the same: showHiddenMetricsForVersion": {"showHiddenMetricsForVersion: '1.35'",
			"showHiddenMetricsForVersion: '1.35'"},
		"the same: mode": {"mode: nftables", "mode: nftables"},
		"the same: ipvs": {
			"{mode: ipvs, ipvs: {scheduler: lc, excludeCIDRs: [10.0.0.0/8], strictARP: true, tcpTimeout: 1s, " +
				"tcpFinTimeout: 2s, udpTimeout: 3s}}",
			"{mode: ipvs, ipvs: {scheduler: lc, excludeCIDRs: [10.0.0.0/8], strictARP: true, " +
				"tcpTimeout: 1s, tcpFinTimeout: 2s, udpTimeout: 3s}}"},
		"the same: nftables.masqueradeBit": {"nftables: {masqueradeBit: 3}", "nftables: {masqueradeBit: 3}"},
		"the same: winkernel": {
			"winkernel: {networkName: n, sourceVip: 10.0.0.1, enableDSR: true, rootHnsEndpointName: r, " +
				"forwardHealthCheckVip: true}",
			"winkernel: {networkName: n, sourceVip: 10.0.0.1, enableDSR: true, rootHnsEndpointName: r, " +
				"forwardHealthCheckVip: true}"},
		"the same: detectLocal": {
			"{detectLocalMode: BridgeInterface, detectLocal: {bridgeInterface: cbr0, interfaceNamePrefix: veth}}",
			"{detectLocalMode: BridgeInterface, detectLocal: {bridgeInterface: cbr0, interfaceNamePrefix: veth}}"},
		"the same: nodePortAddresses": {"nodePortAddresses: [10.0.0.0/8, primary]",
			"nodePortAddresses: [10.0.0.0/8, primary]"},
		"the same: configSyncPeriod": {"configSyncPeriod: 1m", "configSyncPeriod: 1m"},
	} {
		t.Run(name, func(t *testing.T) {
			old := &v1alpha1.KubeProxyConfiguration{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(row.old), old))
			current := v1alpha2.Default()
			*current.IPTables.LocalhostNodePorts, *current.BindAddressHardFail = true, false
			require.NoError(t, yaml.UnmarshalStrict([]byte(row.current), current))

			got, warnings := config.FromV1alpha1(old)
			assert.Empty(t, warnings)
			assert.Equal(t, current, got)

			back, warnings := config.ToV1alpha1(current)
			assert.Empty(t, warnings)
			config.SetDefaultsV1alpha1(old)
			assert.Equal(t, old, back)
		})
	}
}

func TestFieldsThatV1alpha2CannotExpressCauseWarnings(t *testing.T) {
	const forAnotherMode = " is dropped: it is for another mode, and v1alpha2 has one "
	const byCost = "minSyncPeriod, which follows from what a sync costs, for all modes"
	for name, tc := range map[string]struct {
		old  string
		want []string
	}{
		"dropped: portRange": {"portRange: 1-2", []string{
			`portRange: "1-2" is dropped: no proxy has used it since mode userspace was removed`}},
		"periods of other modes": {
			"{mode: ipvs, iptables: {syncPeriod: 2s, minSyncPeriod: 3s}, nftables: {syncPeriod: 4s, minSyncPeriod: 5s}}",
			[]string{
				"iptables.syncPeriod: 2s" + forAnotherMode + "syncPeriod, 30s, for all modes",
				"iptables.minSyncPeriod: 3s" + forAnotherMode + byCost,
				"nftables.syncPeriod: 4s" + forAnotherMode + "syncPeriod, 30s, for all modes",
				"nftables.minSyncPeriod: 5s" + forAnotherMode + byCost,
			},
		},
		"periods of mode ipvs": {
			"{ipvs: {syncPeriod: 2s, minSyncPeriod: 3s}}",
			[]string{
				"ipvs.syncPeriod: 2s" + forAnotherMode + "syncPeriod, 30s, for all modes",
				"ipvs.minSyncPeriod: 3s" + forAnotherMode + byCost,
			},
		},
		"masqueradeAll of nftables in mode iptables": {"nftables: {masqueradeAll: true}",
			[]string{"nftables.masqueradeAll: true" + forAnotherMode + "linux.masqueradeAll, false, for all modes"}},
		"masqueradeAll of iptables in mode nftables": {"{mode: nftables, iptables: {masqueradeAll: true}}",
			[]string{"iptables.masqueradeAll: true" + forAnotherMode + "linux.masqueradeAll, false, for all modes"}},
		"the minimum period that kube-proxy writes": {"{mode: nftables, nftables: {minSyncPeriod: 1s}}", []string{
			"nftables.minSyncPeriod: 1s is obeyed, although kube-proxy writes it where nobody has set it: leave it out, and " +
				"the time between two syncs follows from what they cost"}},
		"not what is the same in all modes": {"{mode: nftables, iptables: {syncPeriod: 9s, masqueradeAll: true}, " +
			"ipvs: {syncPeriod: 9s}, nftables: {syncPeriod: 9s, masqueradeAll: true}}", nil},
		"not the defaults of other modes": {"{mode: nftables, iptables: {syncPeriod: 30s, minSyncPeriod: 1s}, " +
			"nftables: {syncPeriod: 9s}}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			old := &v1alpha1.KubeProxyConfiguration{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(tc.old), old))
			_, warnings := config.FromV1alpha1(old)
			assert.Equal(t, tc.want, texts(warnings))
		})
	}
}

func TestFieldsThatV1alpha1CannotExpressCauseWarnings(t *testing.T) {
	for name, tc := range map[string]struct {
		current string
		want    []string
	}{
		"a second node IP": {"nodeIPOverride: [192.0.2.1, '2001:db8::1']",
			[]string{`nodeIPOverride[1]: "2001:db8::1" is dropped: v1alpha1 has a single address, bindAddress`}},
		"a node IP that is unspecified": {"nodeIPOverride: ['::']",
			[]string{
				`nodeIPOverride[0]: "::" is dropped: as bindAddress in v1alpha1 it means none`}},
		"policies": {"ipFamilyPolicy: SingleStack",
			[]string{
				`ipFamilyPolicy: "SingleStack" is dropped: v1alpha1 lacks the field and behaves as PreferDualStack`}},
		"not the policy that v1alpha1 means": {"ipFamilyPolicy: PreferDualStack", nil},
		"configHardFail": {"configHardFail: false",
			[]string{"configHardFail: false is dropped: v1alpha1 lacks the field and behaves as true"}},
		"another bit for ipvs": {"{iptables: {masqueradeBit: 3}, ipvs: {masqueradeBit: 4}}",
			[]string{"ipvs.masqueradeBit: 4 is dropped: in v1alpha1, modes iptables and ipvs share one bit"}},
		"another bit for iptables, in mode ipvs": {"{mode: ipvs, iptables: {masqueradeBit: 3}, ipvs: {masqueradeBit: " +
			"4}}",
			[]string{
				"iptables.masqueradeBit: 3 is dropped: in v1alpha1, modes iptables and ipvs share one bit"}},
		"not the default bit of another mode": {"{iptables: {masqueradeBit: 3}, ipvs: {masqueradeBit: 14}}", nil},
		"no minimum period": {"minSyncPeriod: 0s",
			[]string{"minSyncPeriod: 0 is dropped: in v1alpha1 it means that it is not set"}},
		"an invalid CIDR": {"detectLocal: {clusterCIDRs: ['a,b']}",
			[]string{`detectLocal.clusterCIDRs: ["a,b"] is dropped: clusterCIDR in v1alpha1 cannot express it`}},
	} {
		t.Run(name, func(t *testing.T) {
			current := &v1alpha2.KubeProxyConfiguration{}
			require.NoError(t, yaml.UnmarshalStrict([]byte(tc.current), current))
			_, warnings := config.ToV1alpha1(current)
			assert.Equal(t, tc.want, texts(warnings))
		})
	}
}

func TestTheBitOfTheModeGoesBack(t *testing.T) {
	for mode, want := range map[v1alpha2.ProxyMode]int32{"iptables": 3, "ipvs": 4, "nftables": 3} {
		c := v1alpha2.Default()
		c.Mode, *c.IPTables.MasqueradeBit, *c.IPVS.MasqueradeBit = mode, 3, 4
		old, _ := config.ToV1alpha1(c)
		assert.Equal(t, want, *old.IPTables.MasqueradeBit, mode)
	}
}

func texts(warnings []config.Warning) []string {
	var all []string
	for _, w := range warnings {
		all = append(all, w.String())
	}
	return all
}
