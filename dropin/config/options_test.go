package config_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

func TestNodeName(t *testing.T) {
	for name, tc := range map[string]struct{ override, hostname, want string }{
		"the name of the host":               {"", "Node-1.example.org\n", "node-1.example.org"},
		"the override":                       {"Node-2", "node-1", "node-2"},
		"white space around it is not of it": {" Node-2 ", "node-1", "node-2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := config.NodeName(&v1alpha2.KubeProxyConfiguration{HostnameOverride: tc.override}, tc.hostname)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	for _, override := range []string{"", "  "} {
		_, err := config.NodeName(&v1alpha2.KubeProxyConfiguration{HostnameOverride: override}, " ")
		require.EqualError(t, err, "hostnameOverride and the name of the host are empty, so that there is no name "+
			"for the node")
	}
}

func TestRunAndStateOptions(t *testing.T) {
	node := config.NodeIPs{Primary: model.IPv6, Families: []model.Family{model.IPv6, model.IPv4}}
	c := v1alpha2.Default()
	c.DetectLocalMode = v1alpha2.LocalModeNodeCIDR
	c.Linux.MasqueradeAll = true
	c.SyncPeriod.Duration = 20 * time.Second
	c.MinSyncPeriod = &metav1.Duration{Duration: 5 * time.Second}

	state, cluster, warnings, err := config.StateOptions(c, "node-1", node)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, localstate.Options{
		NodeName:      "node-1",
		Families:      []model.Family{model.IPv6, model.IPv4},
		MasqueradeAll: true,
		DetectLocal:   localstate.DetectLocal{NodeCIDR: true},
	}, state)
	assert.Zero(t, cluster)
	assert.Equal(t, kubeproxy.Options{MinInterval: 5 * time.Second, RetryInterval: 20 * time.Second},
		config.RunOptions(c))

	for mode, resync := range map[v1alpha2.ProxyMode]time.Duration{"": 0, "iptables": 0, "nftables": 0,
		"ipvs": 20 * time.Second, "kernelspace": 20 * time.Second} {
		c.Mode = mode
		assert.Equal(t, resync, config.RunOptions(c).ResyncInterval, "mode %q", mode)
	}

	c.MinSyncPeriod = &metav1.Duration{}
	assert.Negative(t, config.RunOptions(c).MinInterval, "a minimum period of 0 means no pause")
	c.MinSyncPeriod = nil
	assert.Zero(t, config.RunOptions(c).MinInterval, "no minimum period is the default: by cost")

	c.DetectLocalMode = "x"
	_, _, _, err = config.StateOptions(c, "node-1", node)
	require.EqualError(t, err, `detectLocalMode: "x" is not one of `+
		"[ClusterCIDR NodeCIDR BridgeInterface InterfaceNamePrefix]")
}

func TestExternalIPsAreProgrammedUnlessTheirGateIsOff(t *testing.T) {
	for name, tc := range map[string]struct {
		gates map[string]bool
		none  bool
	}{
		"not set": {nil, false},
		"on":      {map[string]bool{"AllowServiceExternalIPs": true}, false},
		"off":     {map[string]bool{"AllowServiceExternalIPs": false}, true},
	} {
		t.Run(name, func(t *testing.T) {
			_, got, _, err := config.StateOptions(&v1alpha2.KubeProxyConfiguration{FeatureGates: tc.gates}, "node-1",
				config.NodeIPs{})
			require.NoError(t, err)
			assert.Equal(t, tc.none, got.NoExternalIPs)
		})
	}
}

func TestOnlyNodeIPsThatAreOverriddenAreFixed(t *testing.T) {
	both, only4 := []model.Family{4, 6}, []model.Family{4}
	for name, tc := range map[string]struct {
		override []string
		families []model.Family
		want     []string
	}{
		"none":          {nil, both, nil},
		"of one family": {[]string{"192.0.2.9"}, both, []string{"192.0.2.9"}},
		"of both": {[]string{"2001:db8::9", "192.0.2.9"}, both,
			[]string{"2001:db8::9", "192.0.2.9"}},
		"of a family that is not here": {[]string{"192.0.2.9", "2001:db8::9"}, only4, []string{"192.0.2.9"}},
		"loopback is no node IP":       {[]string{"127.0.0.1"}, both, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := v1alpha2.Default()
			c.NodeIPOverride = tc.override
			node, _, err := config.DetectNodeIPs(c, addrs([]string{"192.0.2.1", "2001:db8::1"}), tc.families)
			require.NoError(t, err)
			got, _, _, err := config.StateOptions(c, "node-1", node)
			require.NoError(t, err)
			assert.Equal(t, addrs(tc.want), got.NodeIPs)
		})
	}
}

func TestDetectLocal(t *testing.T) {
	const none4 = "detectLocal.clusterCIDRs: no CIDR of the primary IP family, IPv4; local traffic of that family is " +
		"not detected"
	detect := v1alpha2.DetectLocalConfiguration{BridgeInterface: "cbr0", InterfaceNamePrefix: "veth"}
	for name, tc := range map[string]struct {
		mode     v1alpha2.LocalMode
		cidrs    []string
		want     localstate.DetectLocal
		warnings []string
		err      string
	}{
		"ClusterCIDR": {mode: "ClusterCIDR", cidrs: []string{"10.0.0.0/8", "fd00::/8"},
			want: localstate.DetectLocal{ClusterCIDRs: prefixes("10.0.0.0/8", "fd00::/8")}},
		"ClusterCIDR is what nothing means": {mode: "", cidrs: []string{"10.1.2.3/8"},
			want: localstate.DetectLocal{ClusterCIDRs: prefixes("10.0.0.0/8")}},
		"ClusterCIDR without CIDRs": {mode: "ClusterCIDR", warnings: []string{none4}},
		"ClusterCIDR of the secondary family": {mode: "ClusterCIDR", cidrs: []string{"fd00::/8"},
			want: localstate.DetectLocal{ClusterCIDRs: prefixes("fd00::/8")}, warnings: []string{none4}},
		"invalid ClusterCIDR": {mode: "ClusterCIDR", cidrs: []string{"10.0.0.0/8", "x"},
			err: `detectLocal.clusterCIDRs[1]: "x" is not a CIDR`},
		"NodeCIDR": {mode: "NodeCIDR", cidrs: []string{"10.0.0.0/8"},
			want: localstate.DetectLocal{NodeCIDR: true}},
		"BridgeInterface": {mode: "BridgeInterface", cidrs: []string{"10.0.0.0/8"},
			want: localstate.DetectLocal{Bridge: "cbr0"}},
		"InterfaceNamePrefix": {mode: "InterfaceNamePrefix", cidrs: []string{"10.0.0.0/8"},
			want: localstate.DetectLocal{InterfacePrefix: "veth"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &v1alpha2.KubeProxyConfiguration{DetectLocalMode: tc.mode, DetectLocal: detect}
			c.DetectLocal.ClusterCIDRs = tc.cidrs
			got, _, warnings, err := config.StateOptions(c, "node-1", config.NodeIPs{Primary: model.IPv4})
			if tc.err != "" {
				require.EqualError(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, got.DetectLocal)
			assert.Equal(t, tc.warnings, texts(warnings))
			_, err = localstate.New(t.Context(), got, localstate.ClusterOptions{})
			require.NoError(t, err, "the state takes the options")
		})
	}
}

func TestClusterCIDRsOfTheOtherFamilyOnly(t *testing.T) {
	single, dual := config.NodeIPs{Primary: 4, Families: []model.Family{4}},
		config.NodeIPs{Primary: 4, Families: []model.Family{4, 6}}
	for name, tc := range map[string]struct {
		node     config.NodeIPs
		cidrs    []string
		hardFail bool
		err      string
	}{
		"are an error on a node of one family": {single, []string{"fd00::/8"}, true,
			"detectLocal.clusterCIDRs: [fd00::/8], but this node serves IPv4 only"},
		"are a warning there without configHardFail":      {single, []string{"fd00::/8"}, false, ""},
		"are a warning on a node of both":                 {dual, []string{"fd00::/8"}, true, ""},
		"are not the same as none, which gives a warning": {single, nil, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := v1alpha2.Default()
			c.DetectLocal.ClusterCIDRs, c.ConfigHardFail = tc.cidrs, &tc.hardFail
			_, _, warnings, err := config.StateOptions(c, "node-1", tc.node)
			if tc.err != "" {
				require.EqualError(t, err, tc.err)
				return
			}
			require.NoError(t, err)
			assert.Len(t, warnings, 1)
		})
	}
}

func TestNodePortAddresses(t *testing.T) {
	all, primary := nodeaddr.Choice{}, nodeaddr.Choice{Primary: true}
	in := func(list ...string) nodeaddr.Choice { return nodeaddr.Choice{CIDRs: prefixes(list...)} }
	for name, tc := range map[string]struct {
		mode v1alpha2.ProxyMode
		list []string
		want nodeaddr.Choice
	}{
		"in mode nftables, none are the node's IPs": {"nftables", nil, primary},
		"in mode iptables, none are all addresses":  {"iptables", nil, all},
		"in mode ipvs, none are all addresses":      {"ipvs", nil, all},
		"primary are the node's IPs":                {"iptables", []string{"primary"}, primary},
		"CIDRs": {"nftables", []string{"10.1.2.3/8", "fd00::/8"},
			in("10.0.0.0/8", "fd00::/8")},
		"a mix": {"iptables", []string{"localhost", "010.0.0.0/8", "primary"},
			nodeaddr.Choice{Primary: true, CIDRs: prefixes("127.0.0.0/8", "::1/128", "10.0.0.0/8")}},
		"in mode nftables, all are not the node's IPs": {"nftables", []string{"all"}, in("0.0.0.0/0", "::/0")},
		"IPv4 in IPv6 is IPv4":                         {"nftables", []string{"::ffff:10.0.0.0/104"}, in("10.0.0.0/8")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := config.NodePortAddresses(&v1alpha2.KubeProxyConfiguration{Mode: tc.mode,
				NodePortAddresses: tc.list})
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
	_, err := config.NodePortAddresses(&v1alpha2.KubeProxyConfiguration{
		NodePortAddresses: []string{"x", "10.0.0.0/8", "primary"}})
	require.EqualError(t, err, `nodePortAddresses[0]: "x" is not a CIDR, "primary", "localhost" or "all"`)
}

func TestMasqueradeMark(t *testing.T) {
	c := &v1alpha2.KubeProxyConfiguration{}
	assert.Equal(t, uint32(0x4000), config.MasqueradeMark(c), "the default")
	c.IPTables.MasqueradeBit, c.IPVS.MasqueradeBit, c.NFTables.MasqueradeBit = ptr.To[int32](0), ptr.To[int32](1),
		ptr.To[int32](31)
	for mode, want := range map[v1alpha2.ProxyMode]uint32{"": 1, "iptables": 1, "ipvs": 2, "nftables": 1 << 31} {
		c.Mode = mode
		assert.Equal(t, want, config.MasqueradeMark(c), "mode %q", mode)
	}
	for _, bit := range []int32{-1, 32} {
		c.NFTables.MasqueradeBit = &bit
		c.Mode = v1alpha2.ProxyModeNFTables
		assert.Equal(t, uint32(0x4000), config.MasqueradeMark(c), "bit %d is out of range", bit)
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestAnOverriddenNodeIPReachesTheNodeLocalState(t *testing.T) {
	v4 := netip.MustParseAddr("192.0.2.7")
	node := config.NodeIPs{Primary: model.IPv4, Families: []model.Family{model.IPv4, model.IPv6},
		IPs: map[model.Family]netip.Addr{model.IPv4: v4, model.IPv6: netip.IPv6Loopback()}}
	got, _, _, err := config.StateOptions(&v1alpha2.KubeProxyConfiguration{NodeIPOverride: []string{"192.0.2.7"}},
		"node-1", node)
	require.NoError(t, err)
	assert.Equal(t, []netip.Addr{v4}, got.NodeIPs, "an unknown IP is left out")

	got, _, _, err = config.StateOptions(&v1alpha2.KubeProxyConfiguration{}, "node-1", node)
	require.NoError(t, err)
	assert.Empty(t, got.NodeIPs, "the Node object says")
}

// A list such as 127.0.0.0/8 says nothing about the other family, where node ports are served everywhere then (S35).
func TestNodePortAddressesThatLeaveAFamilyOpenAreAWarning(t *testing.T) {
	dual := config.NodeIPs{Primary: model.IPv4, Families: model.Families()}
	const ipv6 = "nodePortAddresses: has no IPv6 entry: node ports are served on all IPv6 addresses of the node"
	for name, tc := range map[string]struct {
		list []string
		node config.NodeIPs
		want []string
	}{
		"a range of one family":         {[]string{"127.0.0.0/8"}, dual, []string{ipv6}},
		"on a node that has only that":  {[]string{"127.0.0.0/8"}, config.NodeIPs{Families: []model.Family{model.IPv4}}, nil},
		"ranges of both":                {[]string{"127.0.0.0/8", "::1/128"}, dual, nil},
		"a keyword is about both":       {[]string{"localhost"}, dual, nil},
		"another keyword":               {[]string{"10.0.0.0/8", "primary"}, dual, nil},
		"everything of one family":      {[]string{"10.0.0.0/8", "::/0"}, dual, nil},
		"everything":                    {[]string{"all"}, dual, nil},
		"nothing, which is the default": {nil, dual, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := v1alpha2.Default()
			c.DetectLocalMode, c.NodePortAddresses = v1alpha2.LocalModeNodeCIDR, tc.list
			_, _, warnings, err := config.StateOptions(c, "node-1", tc.node)
			require.NoError(t, err)
			assert.Equal(t, tc.want, texts(warnings))
		})
	}
}
