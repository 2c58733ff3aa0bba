package config_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/model"
)

func TestDetectNodeIPs(t *testing.T) {
	const (
		single  = v1alpha2.IPFamilyPolicySingleStack
		prefer  = v1alpha2.IPFamilyPolicyPreferDualStack
		require = v1alpha2.IPFamilyPolicyRequireDualStack
		unknown = "nodeIPOverride: this node's IP is unknown: using "
	)
	both, only4, only6 := []model.Family{4, 6}, []model.Family{4}, []model.Family{6}
	for name, tc := range map[string]struct {
		override []string
		policy   v1alpha2.IPFamilyPolicy
		soft     bool // configHardFail is false
		node     []string
		kernel   []model.Family // default: both

		families []model.Family // the primary one first
		ips      []string       // in their order
		warnings []string
		err      string
	}{
		"S49: the first node IP decides, IPv4": {node: []string{"192.0.2.1", "2001:db8::1"}, families: both,
			ips: []string{"192.0.2.1", "2001:db8::1"}},
		"S49: the first node IP decides, IPv6": {node: []string{"2001:db8::1", "192.0.2.1"},
			families: []model.Family{6, 4}, ips: []string{"2001:db8::1", "192.0.2.1"}},
		"S49: the override comes before the node's IPs": {override: []string{"2001:db8::9"},
			node:     []string{"192.0.2.1", "2001:db8::1"},
			families: []model.Family{6, 4}, ips: []string{"2001:db8::9", "192.0.2.1"}},
		"S49: without any, IPv4 and loopback": {families: both, ips: []string{"127.0.0.1", "::1"},
			warnings: []string{unknown + "127.0.0.1; if that is wrong, set this field (bindAddress " +
				"in v1alpha1)"}},
		"a family without an IP is served all the same": {node: []string{"192.0.2.1"}, families: both,
			ips: []string{"192.0.2.1", "::1"}},
		"the first IP of each family counts": {
			node: []string{"192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2"}, families: both,
			ips: []string{"192.0.2.1", "2001:db8::1"}},
		"overrides for both families": {override: []string{"2001:db8::9", "192.0.2.9"},
			node: []string{"192.0.2.1"}, families: []model.Family{6, 4}, ips: []string{"2001:db8::9", "192.0.2.9"}},
		"an override can be loopback, and then it is known": {override: []string{"127.0.0.1"}, families: both,
			ips: []string{"127.0.0.1", "::1"}},
		"leading zeros are decimal": {override: []string{"010.0.0.1"}, families: both,
			ips: []string{"10.0.0.1", "::1"}},
		"IPv4 in IPv6 is IPv4": {override: []string{"::ffff:192.0.2.9"},
			node: []string{"::ffff:192.0.2.1"}, families: both, ips: []string{"192.0.2.9", "::1"}},

		"a kernel without IPv6 serves IPv4": {node: []string{"192.0.2.1", "2001:db8::1"}, kernel: only4,
			families: only4, ips: []string{"192.0.2.1", "2001:db8::1"}},
		"a kernel without IPv4 serves IPv6": {node: []string{"2001:db8::1"}, kernel: only6, families: only6,
			ips: []string{"2001:db8::1", "127.0.0.1"}},
		"the kernel has to have the primary family": {node: []string{"192.0.2.1", "2001:db8::1"}, kernel: only6,
			err: "no support for the primary IP family, IPv4, on this machine; to change it, set nodeIPOverride " +
				"(bindAddress in v1alpha1)"},
		"that does not depend on configHardFail": {node: []string{"2001:db8::1"}, kernel: only4, soft: true,
			err: "no support for the primary IP family, IPv6, on this machine; to change it, set nodeIPOverride " +
				"(bindAddress in v1alpha1)"},
		"a kernel with nothing is no use": {node: []string{"192.0.2.1"}, kernel: []model.Family{},
			err: "no support for the primary IP family, IPv4, on this machine; to change it, set nodeIPOverride " +
				"(bindAddress in v1alpha1)"},
		"an override for a family that the kernel has not": {override: []string{"192.0.2.9", "2001:db8::9"},
			kernel: only4, families: only4, ips: []string{"192.0.2.9", "2001:db8::9"},
			warnings: []string{"nodeIPOverride[1]: 2001:db8::9 is ignored: this machine has no IPv6"}},
		"an override that is no IP": {override: []string{"192.0.2.9", "node-1"},
			err: `nodeIPOverride[1]: "node-1" is not a valid node IP`},
		"an override that is unspecified": {override: []string{"::"},
			err: `nodeIPOverride[0]: "::" is not a valid node IP`},

		"SingleStack serves the primary family": {policy: single, node: []string{"192.0.2.1", "2001:db8::1"},
			families: only4, ips: []string{"192.0.2.1"}},
		"SingleStack with an override": {policy: single, override: []string{"2001:db8::9"},
			node: []string{"192.0.2.1", "2001:db8::1"}, families: only6, ips: []string{"2001:db8::9"}},
		"SingleStack does not need both families": {policy: single, node: []string{"192.0.2.1"}, kernel: only4,
			families: only4, ips: []string{"192.0.2.1"}},
		"SingleStack needs the primary one": {policy: single, node: []string{"192.0.2.1"}, kernel: only6,
			err: "no support for the primary IP family, IPv4, on this machine; to change it, set nodeIPOverride " +
				"(bindAddress in v1alpha1)"},

		"PreferDualStack has both": {policy: prefer, node: []string{"192.0.2.1", "2001:db8::1"}, families: both,
			ips: []string{"192.0.2.1", "2001:db8::1"}},
		"PreferDualStack can do with one": {policy: prefer, node: []string{"192.0.2.1"}, kernel: only4,
			families: only4, ips: []string{"192.0.2.1", "::1"}},
		"PreferDualStack serves two of it": {policy: prefer, node: []string{"192.0.2.1"}, families: both,
			ips: []string{"192.0.2.1", "::1"}},

		"RequireDualStack has both": {policy: require, node: []string{"2001:db8::1", "192.0.2.1"},
			families: []model.Family{6, 4}, ips: []string{"2001:db8::1", "192.0.2.1"}},
		"RequireDualStack can have an override": {policy: require, override: []string{"2001:db8::9"},
			node: []string{"192.0.2.1"}, families: []model.Family{6, 4}, ips: []string{"2001:db8::9", "192.0.2.1"}},
		"RequireDualStack needs IPs of both": {policy: require, node: []string{"192.0.2.1"},
			err: "ipFamilyPolicy is RequireDualStack: the node has no IPv6 address"},
		"RequireDualStack needs both in the kernel": {policy: require, node: []string{"192.0.2.1", "2001:db8::1"},
			kernel: only4,
			err:    "ipFamilyPolicy is RequireDualStack: this machine has no IPv6"},
		"RequireDualStack names all that is missing": {policy: require, kernel: only4,
			err: "ipFamilyPolicy is RequireDualStack: the node has no IPv4 address\nthe node has no IPv6 " +
				"address\nthis machine has no IPv6"},
		"RequireDualStack without configHardFail warns": {policy: require, soft: true, node: []string{"192.0.2.1"},
			kernel: only4, families: only4, ips: []string{"192.0.2.1", "::1"},
			warnings: []string{
				"ipFamilyPolicy: RequireDualStack: the node has no IPv6 address; continuing without",
				"ipFamilyPolicy: RequireDualStack: this machine has no IPv6; continuing without",
			}},
	} {
		t.Run(name, func(t *testing.T) {
			c := v1alpha2.Default()
			c.NodeIPOverride, c.IPFamilyPolicy, *c.ConfigHardFail = tc.override, tc.policy, !tc.soft
			if tc.kernel == nil {
				tc.kernel = both
			}
			got, warnings, err := config.DetectNodeIPs(c, addrs(tc.node), tc.kernel)
			if tc.err != "" {
				assert.EqualError(t, err, tc.err)
				assert.Zero(t, got)
				return
			}
			assert.NoError(t, err)
			assert.Equal(t, tc.families[0], got.Primary)
			assert.Equal(t, tc.families, got.Families)
			want := map[model.Family]netip.Addr{}
			for _, ip := range addrs(tc.ips) {
				want[model.FamilyOf(ip)] = ip
			}
			assert.Equal(t, want, got.IPs)
			assert.Equal(t, tc.warnings, texts(warnings))
		})
	}
}

func TestDetectNodeIPsKeepsGivenIPs(t *testing.T) {
	c := v1alpha2.Default()
	c.NodeIPOverride = []string{"192.0.2.9"}
	node := addrs([]string{"192.0.2.1", "2001:db8::1"})
	kernel := []model.Family{6, 4}
	_, _, err := config.DetectNodeIPs(c, node[:1], kernel)
	require.NoError(t, err)
	assert.Equal(t, addrs([]string{"192.0.2.1", "2001:db8::1"}), node)
	assert.Equal(t, []model.Family{6, 4}, kernel)
	assert.Equal(t, []string{"192.0.2.9"}, c.NodeIPOverride)
}

func addrs(texts []string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}
