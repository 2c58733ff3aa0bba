package preflight

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// opposed has, for each rule by which two configurations of this library differ, a cluster that shows it.
func opposed() []struct{ rule, a, b, cluster string } {
	const singleStack = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\nmode: nftables\n" +
		"ipFamilyPolicy: SingleStack\n"
	nodePort := filled("nodePort: 30080", "type: NodePort")
	external := filled("", "externalIPs: [203.0.113.1]")
	dualStack := strings.NewReplacer("ipFamilies: [IPv4]", "ipFamilies: [IPv4, IPv6]", "clusterIPs: [10.96.0.10]",
		`clusterIPs: [10.96.0.10, "fd00::10"]`).Replace(filled("", ""))
	return []struct{ rule, a, b, cluster string }{
		{"S6", "nftables", "--proxy-mode=nftables --feature-gates=AllowServiceExternalIPs=false", external},
		{"S26", "nftables", "--proxy-mode=nftables --service-limits=source-ranges=1",
			filled("", "type: LoadBalancer\n  loadBalancerSourceRanges: [203.0.112.0/24, 203.0.114.0/24]\n"+
				"status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}")},
		{"S28", "nftables", "--proxy-mode=nftables --masquerade-all", filled("", "")},
		{"S30", "--proxy-mode=nftables --cluster-cidr=10.244.0.0/16",
			"--proxy-mode=nftables --detect-local-mode=NodeCIDR", filled("", "", secondNode)},
		{"S32", "iptables", "ipvs",
			filled("", "externalIPs: [203.0.113.1]\n  externalTrafficPolicy: Local\n  sessionAffinity: ClientIP")},
		{"S33", "iptables", "nftables", filled("", "")},
		{"S33", "iptables", "ipvs", external},
		{"S33", "ipvs", "nftables", external},
		{"S35", "iptables", "nftables", nodePort},
		{"S35", "ipvs", "nftables", nodePort},
		{"S35", "nftables", "--proxy-mode=nftables --nodeport-addresses=198.51.100.0/24", nodePort},
		{"S36", "iptables", "nftables", nodePort},
		{"S36", "iptables", "ipvs", nodePort},
		{"S36", "nftables", gated, nodePort},
		{"S38", "ipvs", "nftables", filled("", healthCheck)},
		{"S49", "nftables", singleStack, dualStack},
		{"S57", "ipvs", "--proxy-mode=ipvs --ipvs-scheduler=sh", filled("", "")},
		{"S60", "nftables", "--proxy-mode=nftables --service-limits=endpoints=1", filled("", "")},
		{"S63", "nftables", "ipvs", filled("", "externalIPs: [192.0.2.9]", apiServer)},
	}
}

// What differs between two configurations also differs on the way back, the other way round.
func TestEachDifferenceHasItsOpposite(t *testing.T) {
	for _, test := range opposed() {
		t.Run(test.rule+" "+test.a+" "+test.b, func(t *testing.T) {
			file := write(t, test.cluster)
			there, back := asked(t, file, test.a, test.b), asked(t, file, test.b, test.a)
			assert.True(t, slices.ContainsFunc(there, func(d difference) bool { return d.Rule == test.rule }), "%+v", there)
			for i := range back {
				back[i].Before, back[i].After = back[i].After, back[i].Before
			}
			for _, list := range [][]difference{there, back} {
				for i := range list {
					list[i].Rule = "" // of what happens afterwards
				}
			}
			assert.Equal(t, there, back)
		})
	}
}

// asked returns the differences on node-1 between two configurations of this library.
func asked(t *testing.T, file, from, to string) (list []difference) {
	configuration := func(text string) string {
		if strings.HasPrefix(text, "apiVersion") {
			return write(t, text)
		}
		return text
	}
	var out strings.Builder
	_, err := run(t.Context(), []string{"--file", file, "--node-name", "node-1", "-o", "json", "--same", "--from",
		configuration(from), "--to", configuration(to)}, &out)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal([]byte(out.String()), &list))
	return list
}

// Each rule that the pages on the modes name has a cluster that shows it, or a reason why none does.
func TestEachRuleOfTheModesIsLookedFor(t *testing.T) {
	reasons := map[string]string{
		"S29": "alike in all modes",
		"S43": "about the time that changes take",
		"S62": "a question of pods' host ports",
		"S67": "a question of other programs' rules",
	}
	for _, s := range shownDepartures() {
		if at := strings.LastIndex(s.want, "(S"); at >= 0 {
			reasons[strings.Trim(s.want[at:], "()")] = "shown"
		}
	}
	for _, test := range opposed() {
		reasons[test.rule] = "shown"
	}
	// In TestDifferences, from kube-proxy, whose mode differs from itself here.
	reasons["S27"] = "shown"
	for _, page := range []string{"nft", "iptables", "ipvs"} {
		text, err := os.ReadFile("../../../docs/" + page + ".md")
		require.NoError(t, err)
		for _, rule := range regexp.MustCompile(`\bS\d+a?\b`).FindAllString(string(text), -1) {
			assert.Contains(t, reasons, rule, "docs/%s.md", page)
		}
	}
}
