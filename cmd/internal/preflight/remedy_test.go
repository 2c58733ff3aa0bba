package preflight

import (
	"io"
	"regexp"
	"strings"
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
		from, _, err := Configuration(t.Context(), test.from, &source.Cluster{})
		require.NoError(t, err)
		to, _, err := Configuration(t.Context(), test.to, &source.Cluster{})
		require.NoError(t, err)
		assert.Equal(t, test.want, remedy(test.rule, from.Configuration, to.Configuration), "%+v", test)
	}
	single, _, err := Configuration(t.Context(), configFileV2(t, "mode: nftables\nipFamilyPolicy: SingleStack\n"),
		&source.Cluster{})
	require.NoError(t, err)
	dual, _, err := Configuration(t.Context(), "nftables", &source.Cluster{})
	require.NoError(t, err)
	assert.Equal(t, "ipFamilyPolicy: PreferDualStack in a configuration file of version v1alpha2",
		remedy("S49", dual.Configuration, single.Configuration))
}

// What is said to keep the earlier behaviour of a difference does so.
func TestRemediesKeepTheEarlierBehaviour(t *testing.T) {
	type move struct {
		from, to, cluster string
		more              []string
	}
	const dualStackNode = "address: 192.0.2.1}, {type: InternalIP, address: \"2001:db8::1\"}"
	full := strings.NewReplacer("address: 192.0.2.1}", dualStackNode, "ipFamilies: [IPv4]", "ipFamilies: [IPv4, IPv6]",
		"clusterIPs: [10.96.0.10]", `clusterIPs: [10.96.0.10, "fd00::10"]`).Replace(filled("nodePort: 30080",
		"externalIPs: [203.0.113.1]\n  "+healthCheck, apiServer, secondNode))
	single := strings.Replace(filled("nodePort: 30080", healthCheck), "address: 192.0.2.1}", dualStackNode, 1)
	var moves []move
	for _, cluster := range []string{full, single, strings.ReplaceAll(full, "ready: true", "ready: false"),
		strings.Replace(full, "nodeName: node-1", "nodeName: node-3", 1)} {
		for _, from := range []string{"iptables", "ipvs", "nftables", gated, few, "--proxy-mode=ipvs --masquerade-all",
			"--proxy-mode=iptables --nodeport-addresses=198.51.100.0/24",
			"--proxy-mode=nftables --cluster-cidr=10.244.0.0/16"} {
			for _, to := range []string{"iptables", "ipvs", "nftables",
				"--proxy-mode=nftables --feature-gates=AllowServiceExternalIPs=false"} {
				for _, more := range [][]string{{"--same"}, {"--host-addresses", "198.51.100.1,203.0.113.9"}} {
					moves = append(moves, move{from, to, cluster, more})
				}
			}
		}
	}
	for _, test := range opposed() {
		moves = append(moves, move{test.a, test.b, test.cluster, []string{"--same"}},
			move{test.b, test.a, test.cluster, []string{"--same"}})
	}
	flag := regexp.MustCompile(`--[a-z-]+=[^ )]*`)
	for _, m := range moves {
		if strings.HasPrefix(m.from+m.to, "apiVersion") || strings.HasPrefix(m.to, "apiVersion") {
			continue // the remedy is no flag
		}
		file := write(t, m.cluster)
		c, list := comparing(t, append([]string{"--file", file, "--from", m.from, "--to", m.to}, m.more...))
		kept := map[string]map[string]bool{} // by remedy, what differs with it
		for _, d := range list {
			flags := flag.FindAllString(c.remedy(d), -1)
			if flags == nil {
				continue
			}
			how := strings.Join(flags, " ")
			if kept[how] == nil {
				to := m.to
				if !strings.HasPrefix(to, "-") {
					to = "--proxy-mode=" + to
				}
				if strings.Contains(how, "--nodeport-addresses=") { // the new list replaces that
					to = regexp.MustCompile(`--nodeport-addresses=\S*`).ReplaceAllString(to, "")
				}
				kept[how] = map[string]bool{}
				_, list := comparing(t, append([]string{"--file", file, "--from", m.from, "--to", to + " " + how}, m.more...))
				for _, d := range list {
					kept[how][d.Object+" "+d.Destination+": "+d.Before+"; "+d.After] = true
				}
			}
			assert.NotContains(t, kept[how], d.Object+" "+d.Destination+": "+d.Before+"; "+d.After, "%s to %s, %v: %s", m.from,
				m.to, m.more, how)
		}
	}
}

// comparing compares on node-1.
func comparing(t *testing.T, args []string) (*comparison, []difference) {
	o, err := parse(append([]string{"--node-name", "node-1"}, args...), io.Discard)
	require.NoError(t, err)
	o.warn = io.Discard
	c := newComparison(o, io.Discard)
	require.NoError(t, c.read(t.Context()))
	list, failed := c.compare(t.Context())
	require.Empty(t, failed)
	return c, list
}
