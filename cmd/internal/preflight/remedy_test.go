package preflight

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
)

// What is said to keep the earlier behaviour does so, is complete, and is nothing where no setting does.
func TestRemedies(t *testing.T) {
	const nft, ipvs, gates = "--proxy-mode=nftables", "--proxy-mode=ipvs", "--feature-gates="
	const localhost = gates + "KubeProxyNFTablesLocalhostNodePorts="
	for _, test := range []struct{ rule, from, to, want string }{
		{"S6", "nftables", nft + " --feature-gates=AllowServiceExternalIPs=false", gates + "AllowServiceExternalIPs=true"},
		{"S6", nft + " --feature-gates=AllowServiceExternalIPs=false", "nftables", gates + "AllowServiceExternalIPs=false"},
		{"S6", "iptables", "nftables", ""},
		{"S28", nft + " --masquerade-all", "nftables", "--masquerade-all=true"},
		{"S28", "nftables", nft + " --masquerade-all", "--masquerade-all=false"},
		{"S30", nft + " --cluster-cidr=10.1.0.0/16 --masquerade-all", nft + " --detect-local-mode=NodeCIDR",
			"--masquerade-all=true --detect-local-mode=ClusterCIDR --cluster-cidr=10.1.0.0/16"},
		{"S30", nft + " --detect-local-mode=BridgeInterface --pod-bridge-interface=br0", "nftables",
			"--detect-local-mode=BridgeInterface --pod-bridge-interface=br0"},
		{"S30", nft + " --detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth", "nftables",
			"--detect-local-mode=InterfaceNamePrefix --pod-interface-name-prefix=veth"},
		{"S30", "iptables", "nftables", ""},
		{"S35", "iptables", "nftables", "nodePortAddresses as before (--nodeport-addresses=all)"},
		{"S38", "nftables", "ipvs", "nodePortAddresses as before (--nodeport-addresses=primary)"},
		{"S35", "nftables", "nftables", ""},
		{"S36", "iptables", "nftables", localhost + "true --nodeport-addresses=primary,localhost"},
		{"S36", "iptables", nft + " --nodeport-addresses=0.0.0.0/0", localhost + "true"},
		{"S36", "iptables", nft + " --feature-gates=KubeProxyNFTablesLocalhostNodePorts=true",
			"--nodeport-addresses=primary,localhost"},
		{"S36", "iptables", "--iptables-localhost-nodeports=false", "--iptables-localhost-nodeports=true"},
		{"S36", "--iptables-localhost-nodeports=false", "iptables", "--iptables-localhost-nodeports=false"},
		{"S36", "iptables", "--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses=10.0.0.0/8,localhost"},
		{"S36", "nftables", gated, localhost + "false"},
		{"S36", "iptables", "ipvs", ""},
		{"S36a", gated, gated, ""},
		{"S57", ipvs + " --ipvs-scheduler=sh", "ipvs", "--ipvs-scheduler=sh"},
		{"S57", "iptables", ipvs + " --ipvs-scheduler=sh", "--ipvs-scheduler=rr"},
		{"S57", ipvs + " --ipvs-scheduler=sh", "nftables", ""},
		{"S33", "iptables", "nftables", ""},
	} {
		from, err := Configuration(t.Context(), test.from, &source.Cluster{})
		require.NoError(t, err)
		to, err := Configuration(t.Context(), test.to, &source.Cluster{})
		require.NoError(t, err)
		assert.Equal(t, test.want, remedy(test.rule, from.Configuration, to.Configuration), "%+v", test)
	}
	single, err := Configuration(t.Context(), configFileV2(t, "mode: nftables\nipFamilyPolicy: SingleStack\n"),
		&source.Cluster{})
	require.NoError(t, err)
	dual, err := Configuration(t.Context(), "nftables", &source.Cluster{})
	require.NoError(t, err)
	assert.Equal(t, "ipFamilyPolicy: PreferDualStack in a configuration file of version v1alpha2",
		remedy("S49", dual.Configuration, single.Configuration))
}
