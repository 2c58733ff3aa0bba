package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/program/source"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// cluster has one service with an endpoint on node-1 and one on node-2. SPEC is more of its spec, OBJECTS are more
// objects.
const cluster = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: kubernetes}
spec: {cidrs: [10.96.0.0/12]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  clusterIP: 10.96.0.10
  clusterIPs: [10.96.0.10]
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80, PORT}]
  SPEC
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.5], nodeName: NODE, conditions: {ready: true}}
- {addresses: [10.244.2.5], nodeName: node-2, conditions: {ready: true}}
`

// with returns a file of the cluster.
func with(t *testing.T, port, spec, node string, objects ...string) string {
	text := strings.NewReplacer("PORT", port, "SPEC", spec, "NODE", node).Replace(cluster)
	file := filepath.Join(t.TempDir(), "cluster.yaml")
	require.NoError(t, os.WriteFile(file, []byte(strings.Join(append([]string{text}, objects...), "\n---\n")), 0o600))
	return file
}

func configFile(t *testing.T, text string) string {
	return write(t, "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+text)
}

func configFileV2(t *testing.T, text string) string {
	return write(t, "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n"+text)
}

// lines returns the differences on node-1, a line each, in order.
func lines(t *testing.T, args ...string) (all []string) {
	t.Helper()
	var out bytes.Buffer
	n, err := run(t.Context(), append([]string{"--node-name", "node-1", "-o", "json"}, args...), &out)
	require.NoError(t, err)
	var list []difference
	require.NoError(t, json.Unmarshal(out.Bytes(), &list))
	assert.Len(t, list, n)
	for _, d := range list {
		assert.Equal(t, []string{"node-1"}, d.Nodes)
		text := d.Object
		if d.Destination != "" {
			text += " at " + d.Destination
		}
		if len(d.Senders) > 0 {
			text += ", from " + strings.Join(d.Senders, " and ")
		}
		text = fmt.Sprintf("%s: %s; then %s (%s)", text, d.Before, d.After, d.Rule)
		if d.Connections != nil {
			text += fmt.Sprintf("; the node is tracking %d connections", *d.Connections)
		}
		all = append(all, text)
	}
	return all
}

// apiServer is the API server's Service. It is at port 80, as the Service of the cluster is.
const apiServer = `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: kubernetes}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], ipFamilies: [IPv4], ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: default, name: kubernetes, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 80}]
endpoints: [{addresses: [192.0.2.9], conditions: {ready: true}}]`

func TestDifferences(t *testing.T) {
	const unallocated = "addresses of the ServiceCIDRs that no service has: left to the node's routes; then dropped (S33)"
	const nodePort, all = "nodePort: 30080", " and a pod of this node and a pod of another node and outside: "
	const elsewhere = "node ports and health checks of 1 Service at IPv4 addresses of the node that its Node object " +
		"does not list: " +
		"served; then not served (S35)"
	const ranged = "type: LoadBalancer\n  loadBalancerSourceRanges: [203.0.112.0/24]\n" +
		"status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}"
	unready := strings.NewReplacer("ready: true", "ready: false")
	noExternalIPs := "--proxy-mode=nftables --feature-gates=AllowServiceExternalIPs=false,KubeProxyIPVS=false"
	dualStack := strings.NewReplacer("ipFamilies: [IPv4]", "ipFamilies: [IPv4, IPv6]", "clusterIPs: [10.96.0.10]",
		`clusterIPs: [10.96.0.10, "fd00::10"]`)
	tests := map[string]struct {
		file     string
		from, to string
		more     []string
		want     []string
	}{
		"none": {with(t, "", "", "node-1"), "nftables", "nftables", nil, nil},
		"none in the same mode": {with(t, nodePort, "type: NodePort", "node-1"), "iptables", "iptables", nil,
			nil},
		"ports of cluster IPs": {with(t, "", "", "node-1"), "iptables", "nftables", nil, []string{unallocated,
			"ports of cluster IPs that no service has: left to the node's routes; then refused (S33)"}},
		"node ports on 127.0.0.1": {with(t, nodePort, "type: NodePort", "node-1"), "iptables",
			"--proxy-mode=iptables --iptables-localhost-nodeports=false", nil, []string{
				"shop/web:http/TCP at 127.0.0.1:30080, from the node: delivered, with an address of the node as the " +
					"source; then not served (S36)"}},
		"node ports on addresses that are unknown": {with(t, nodePort, "type: NodePort", "node-1"), "ipvs", "nftables",
			nil, []string{unallocated, elsewhere}},
		"node ports on other addresses": {with(t, nodePort, "type: NodePort", "node-1"), "ipvs", "nftables",
			[]string{"--host-addresses", "192.0.2.1, 198.51.100.1"}, []string{unallocated,
				"shop/web:http/TCP at 198.51.100.1:30080, from the node" + all + "delivered, with an address of the node " +
					"as the source; then not served (S35)"}},
		"node ports on addresses of the other family": {write(t, dual.Replace(dualStack.Replace(filled(nodePort,
			"type: NodePort")))), "ipvs", "nftables", []string{"--host-addresses", "192.0.2.1, 198.51.100.1"},
			[]string{unallocated,
				strings.Replace(elsewhere, "IPv4", "IPv6", 1),
				"shop/web:http/TCP at 198.51.100.1:30080, from the node" + all + "delivered, with an address of the node " +
					"as the source; then not served (S35)"}},
		"an address that the Node object has says nothing of others": {with(t, nodePort, "type: NodePort", "node-1"),
			"ipvs", "nftables", []string{"--host-addresses", "192.0.2.1"}, []string{unallocated, elsewhere}},
		"another node's address, from iptables to ipvs": {with(t, "", "externalIPs: [192.0.2.1, 192.0.2.2]", "node-1",
			otherNode), "nftables", "ipvs", []string{"--same"}, nil},
		"another node's address, from ipvs": {with(t, "", "externalIPs: [192.0.2.2]", "node-1", otherNode), "ipvs", "ipvs",
			nil, []string{unallocated,
				"shop/web at other ports of 192.0.2.2: refused: this node does not reach the machine that has " +
					"the address; then not served (S63)"}},
		"another node's address, health checks": {with(t, "", "type: LoadBalancer\n  externalTrafficPolicy: Local\n"+
			"  healthCheckNodePort: 31000\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.2}]}}", "node-1", otherNode),
			"--proxy-mode=nftables --nodeport-addresses=0.0.0.0/0", "ipvs", []string{"--same"}, nil},
		"an API server's address and port": {with(t, "", "externalIPs: [192.0.2.9]", "node-1", apiServer), "nftables",
			"ipvs", []string{"--same"}, []string{
				"shop/web:http/TCP at 192.0.2.9:80, from the node" + all + "delivered, with an address of the node as the " +
					"source; then not served (S63)"}},
		"the target has no external IPs": {with(t, "", "externalIPs: [203.0.113.1]", "node-1"), "nftables", noExternalIPs,
			nil, []string{"shop/web:http/TCP at 203.0.113.1:80, from the node" + all + "delivered, with an address of " +
				"the node as the source; then not served (S6)"}},
		"the old one has no external IPs": {with(t, "", "externalIPs: [203.0.113.1]", "node-1"), noExternalIPs, "nftables",
			nil, []string{"shop/web:http/TCP at 203.0.113.1:80, from the node" + all + "not served; then delivered, " +
				"with an address of the node as the source (S6)"}},
		"the target has one family": {write(t, dualStack.Replace(filled("", ""))), "nftables",
			configFileV2(t, "mode: nftables\nipFamilyPolicy: SingleStack\n"), nil, []string{
				"shop/web:http/TCP at [fd00::10]:80, from outside: rejected; then not served (S49)"}},
		"a Service of the other family": {write(t, strings.NewReplacer("ipFamilies: [IPv4]", "ipFamilies: [IPv6]",
			"10.96.0.10", `"fd00::10"`).Replace(filled("", ""))), "nftables",
			configFileV2(t, "mode: nftables\nipFamilyPolicy: SingleStack\n"), nil, []string{
				"shop/web:http/TCP at [fd00::10]:80, from outside: rejected; then not served (S49)"}},
		"the target's limits": {with(t, "", "externalIPs: [203.0.113.1, 203.0.113.2]", "node-1"), "nftables",
			"--proxy-mode=nftables --service-limits=frontends=2", []string{"--same"}, []string{
				"shop/web:http/TCP: served; then not everything is served: 1 of its addresses are not served: a " +
					"service may have 2 frontends (frontend.Limits)"}},
		"the old one has no external IPs, at the node's address and without endpoints": {write(t, unready.Replace(filled("",
			"externalIPs: [192.0.2.1]"))), "--proxy-mode=iptables --feature-gates=AllowServiceExternalIPs=false", "iptables",
			nil, []string{"shop/web:http/TCP at 192.0.2.1:80, from the node and a pod of this node and outside: not " +
				"served; then rejected (S6)"}},
		"masquerading": {with(t, "", "", "node-1"), "nftables",
			configFile(t, "mode: nftables\nnftables: {masqueradeAll: true}\n"), nil, []string{
				"shop/web:http/TCP at 10.96.0.10:80, from the node" + all + "delivered to 2 endpoints, with the client's " +
					"address as the source; then delivered to 2 endpoints, with an address of the node as the source (S28)"}},
		"a Local service without an endpoint here, from ipvs": {
			with(t, "nodePort: 30080", "type: NodePort\n  externalTrafficPolicy: Local", "node-3"), "ipvs", "ipvs", nil,
			[]string{unallocated,
				"shop/web:http/TCP at 192.0.2.1:30080, from a pod of this node: delivered to endpoints of other nodes; " +
					"then dropped (S58)", "shop/web:http/TCP at 192.0.2.1:30080, from a pod of another node and outside: sent to " +
					"endpoints of other nodes, whose replies do not come back through this one; then dropped (S58)"}},
		"a Local service with an endpoint here, from ipvs": {
			with(t, "nodePort: 30080", "type: NodePort\n  externalTrafficPolicy: Local", "node-1"), "ipvs", "ipvs", nil,
			[]string{unallocated,
				"shop/web:http/TCP at 192.0.2.1:30080, from the node: delivered to the endpoints of this node alone; " +
					"then delivered to 2 endpoints, with an address of the node as the source (S27)"}},
		"the node at an external IP without endpoints, from iptables": {write(t, strings.NewReplacer("ready: true",
			"ready: false").Replace(filled("", "externalIPs: [203.0.113.1, 192.0.2.1]"))), "iptables", "iptables", nil,
			[]string{"shop/web:http/TCP at 203.0.113.1:80, from the node: not served; then rejected (S25)"}},
		"other addresses than those of node ports, from iptables": {write(t, strings.NewReplacer("ready: true",
			"ready: false").Replace(filled(nodePort, "type: NodePort"))),
			"--proxy-mode=iptables --nodeport-addresses=198.51.100.0/24",
			"--proxy-mode=iptables --nodeport-addresses=198.51.100.0/24", nil,
			[]string{"shop/web:http/TCP at 192.0.2.1:30080, from the node and a pod of this node and outside: rejected; " +
				"then not served (S35)",
				"shop/web:http/TCP at 127.0.0.1:30080, from the node: rejected; then not served (S35)"}},
		"source ranges that leave the node out, from ipvs": {with(t, "", "type: LoadBalancer\n"+
			"  loadBalancerSourceRanges: [192.0.2.64/26]\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}",
			"node-1"), "ipvs", "ipvs", nil, []string{unallocated,
			"shop/web:http/TCP at 203.0.113.9:80, from the node: delivered if the program has bound an address of the " +
				"node, otherwise dropped; then dropped (S26)"}},
		"source ranges of a service without endpoints, from ipvs": {write(t, unready.Replace(filled("", ranged))), "ipvs",
			"ipvs", nil, []string{unallocated,
				"shop/web:http/TCP at 203.0.113.9:80, from the node: rejected; then dropped (S26)"}},
		"source ranges of a service without endpoints, from iptables": {write(t, unready.Replace(filled("", ranged))),
			"iptables", "iptables", nil, []string{
				"shop/web:http/TCP at 203.0.113.9:80, from the node: not served; then dropped (S25)",
				"shop/web:http/TCP at 203.0.113.9:80, from a pod of this node and outside: rejected; then dropped (S26)"}},
		"clients that the source ranges allow": {with(t, "", strings.Replace(ranged, "type:",
			"externalTrafficPolicy: Local\n  type:", 1), "node-3"), "ipvs", "ipvs", nil, []string{unallocated,
			"shop/web:http/TCP at 203.0.113.9:80, from the node: delivered if the program has bound an address of the " +
				"node, otherwise dropped; then dropped (S26)",
			"shop/web:http/TCP at 203.0.113.9:80, from outside, in the source ranges: sent to endpoints of other nodes, " +
				"whose replies do not come back through this one; then dropped (S58)"}},
		"an internal policy Local without an endpoint here, from ipvs": {with(t, "", "internalTrafficPolicy: Local",
			"node-3"), "ipvs", "ipvs", nil, []string{unallocated,
			"shop/web:http/TCP at 10.96.0.10:80, from the node and a pod of this node and outside: rejected; then " +
				"dropped (S58)"}},
		"policy Local at addresses without node ports, from iptables": {with(t, nodePort,
			"type: NodePort\n  externalTrafficPolicy: Local", "node-3"),
			"--proxy-mode=iptables --nodeport-addresses=198.51.100.0/24",
			"--proxy-mode=iptables --nodeport-addresses=198.51.100.0/24", nil, []string{
				"shop/web:http/TCP at 192.0.2.1:30080, from the node" + all + "dropped; then not served (S35)",
				"shop/web:http/TCP at 127.0.0.1:30080, from the node: dropped; then not served (S35)"}},
		"a gate without a loopback range": {with(t, nodePort, "type: NodePort", "node-1"), strings.Replace(gated,
			",localhost", "", 1), "nftables", nil, []string{
			"shop/web:http/TCP at 127.0.0.1:30080, from the node: rejected; then not served (S36a)"}},
		"a scheduler of ipvs": {with(t, "", "", "node-1"), "--proxy-mode=ipvs --ipvs-scheduler=sh", "ipvs", nil,
			[]string{unallocated,
				"how endpoints are chosen: by scheduler sh; then evenly (S57)"}},
		"other ports of external IPs, from ipvs": {with(t, "", "externalIPs: [203.0.113.1, 192.0.2.1, 127.0.0.1]",
			"node-1"), "ipvs", "nftables", nil, []string{unallocated,
			"shop/web at other ports of 203.0.113.1: refused; then not served (S33)"}},
		"other ports of external IPs, to ipvs": {with(t, "", "externalIPs: [203.0.113.1, 192.0.2.1]", "node-1"),
			"nftables", "ipvs", nil, []string{
				"shop/web at other ports of 203.0.113.1: not served; then refused (S33)"}},
		"other ports of external IPs that ipvs no longer has": {with(t, "", "externalIPs: [203.0.113.1]", "node-1"), "ipvs",
			"--proxy-mode=ipvs --feature-gates=AllowServiceExternalIPs=false", []string{"--same"}, []string{
				"shop/web at other ports of 203.0.113.1: refused; then not served (S33)",
				"shop/web:http/TCP at 203.0.113.1:80, from the node" + all + "delivered, with an address of the node as the " +
					"source; then not served (S6)"}},
		"health checks at external IPs that ipvs no longer has": {with(t, "", strings.Replace(healthCheck, "\nstatus",
			"\n  externalIPs: [203.0.113.1]\nstatus", 1), "node-3"), "ipvs",
			"--proxy-mode=ipvs --feature-gates=AllowServiceExternalIPs=false", []string{"--same"}, []string{
				"shop/web at other ports of 203.0.113.1: refused; then not served (S33)",
				"shop/web at 203.0.113.1:31000: its health check answers; then its health check does not answer (S38)",
				"shop/web:http/TCP at 203.0.113.1:80, from the node: delivered, with an address of the node as the " +
					"source; then not served (S6)",
				"shop/web:http/TCP at 203.0.113.1:80, from a pod of this node and a pod of another node and outside: " +
					"dropped; then not served (S6)"}},
		"health checks, from ipvs": {with(t, nodePort, healthCheck, "node-1"), "ipvs", "nftables",
			[]string{"--same", "--host-addresses", "198.51.100.1"}, []string{
				"shop/web at other ports of 203.0.113.9: refused; then not served (S33)",
				"shop/web at 198.51.100.1:31000: its health check answers; then its health check does not answer (S38)",
				"shop/web at 203.0.113.9:31000: its health check answers; then its health check does not answer (S38)",
				"shop/web:http/TCP at 198.51.100.1:30080, from the node: delivered, with an address of the node as the " +
					"source; then not served (S35)",
				"shop/web:http/TCP at 198.51.100.1:30080, from a pod of this node and a pod of another node and outside: " +
					"delivered, with the client's address as the source; then not served (S35)"}},
		"health checks in a family that the Service lacks": {write(t, dual.Replace(filled("", healthCheck))),
			"--proxy-mode=nftables --nodeport-addresses=all", "nftables", []string{"--same", "--host-addresses",
				"2001:db8:1::1,198.51.100.1"}, []string{
				"shop/web at [2001:db8:1::1]:31000: its health check answers; then its health check does not answer (S38)",
				"shop/web at 198.51.100.1:31000: its health check answers; then its health check does not answer (S38)"}},
		"health checks at a VIP that the node has": {with(t, nodePort, healthCheck, "node-1"), "nftables", "nftables",
			[]string{"--host-addresses", "203.0.113.9"}, []string{
				"shop/web at 203.0.113.9:31000: its health check does not answer; then its health check answers (S65)"}},
		"health checks at a VIP that the node has, from all addresses": {with(t, "", healthCheck, "node-1"),
			"iptables", "nftables", []string{"--same", "--host-addresses", "203.0.113.9"}, []string{unallocated,
				"ports of cluster IPs that no service has: left to the node's routes; then refused (S33)"}},
		"health checks at VIPs that the node may have": {with(t, "", healthCheck, "node-1"), "iptables", "nftables",
			[]string{"--same"}, []string{unallocated,
				strings.Replace(elsewhere, "then not served", "then not served, but for health checks at a Service's own VIPs "+
					"(S65)", 1),
				"ports of cluster IPs that no service has: left to the node's routes; then refused (S33)"}},
		"health checks in mode ipvs, at few addresses": {with(t, "", healthCheck, "node-1"), few, few, nil,
			[]string{unallocated,
				"shop/web at 203.0.113.9:31000: its health check does not answer; then its health check answers (S65)",
				"shop/web:http/TCP at 203.0.113.9:80, from the node: delivered to the endpoints of this node alone; then " +
					"delivered to 2 endpoints, with an address of the node as the source (S27)"}},
		"health checks of kube-proxy in mode ipvs": {with(t, nodePort, healthCheck, "node-1"), "ipvs", "ipvs", nil,
			[]string{unallocated,
				"shop/web at 10.96.0.10:31000: its health check answers; then its health check does not answer (S38)",
				"shop/web:http/TCP at 203.0.113.9:80, from the node: delivered to the endpoints of this node alone; then " +
					"delivered to 2 endpoints, with an address of the node as the source (S27)",
				"shop/web:http/TCP at 192.0.2.1:30080, from the node: delivered to the endpoints of this node alone; then " +
					"delivered to 2 endpoints, with an address of the node as the source (S27)"}},
		"contested": {with(t, "", "externalIPs: [203.0.113.1]", "node-1", thief(80, "203.0.113.1")),
			"nftables", "nftables", nil, []string{
				"other/thief:http/TCP: this service or the other one is served there, at random; then not everything is " +
					"served: 203.0.113.1:80/TCP belongs to shop/web:http/TCP (S59)"}},
		"contested by an older external IP": {with(t, nodePort, "type: NodePort", "node-1", strings.Replace(
			thief(30080, "192.0.2.1"), "2026-02", "2025-02", 1)), "nftables", "nftables", nil, nil},
		"contested by a newer external IP": {with(t, nodePort, "type: NodePort", "node-1", thief(30080, "192.0.2.1")),
			"nftables", "nftables", nil, []string{
				"other/thief:http/TCP: it is served, before the node port; then not everything is served: " +
					"192.0.2.1:30080/TCP belongs to shop/web:http/TCP (S59)"}},
		"malformed": {with(t, "", "externalIPs: [nonsense]", "node-1"), "nftables", "nftables", nil, []string{
			`Service shop/web: may be used as it is; then ignored: externalIPs: "nonsense" is not an IP address ` +
				`(S3 to S5)`}},
		"not compared with kube-proxy": {with(t, "", "externalIPs: [nonsense]", "node-1"), "nftables", "nftables",
			[]string{"--same"}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, lines(t, append([]string{"--file", test.file, "--from", test.from, "--to",
				test.to}, test.more...)...))
		})
	}
}

// few are flags of mode ipvs, which has all VIPs, that choose few addresses.
const few = "--proxy-mode=ipvs --nodeport-addresses=192.0.2.0/24"

const healthCheck = "type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 31000\n" +
	"status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}"

// Of the VIPs and external IPs that the node has, the health check of a Service answers at the first 16.
func TestHealthChecksAnswerAtFewVIPs(t *testing.T) {
	const vips = 18
	spec := func(external int) string {
		return strings.Replace(healthCheck, "\nstatus", "\n  externalIPs: ["+externalIPs(external)+"]\nstatus", 1)
	}
	at := func(i int) string { return fmt.Sprintf("shop/web at 203.0.%d.1:31000: its health check ", i) }
	host := []string{"--host-addresses", "203.0.113.9," + strings.ReplaceAll(externalIPs(vips-1), " ", "")}
	for name, tc := range map[string]struct {
		from, to string
		more     []string
		lines    int
		first    string // the external IPs come after the VIP
		last     string
	}{
		"one mode, at few addresses": {few, few, nil, 16, at(0) + "does not answer; then its health check answers (S65)",
			at(14) + "does not answer; then its health check answers (S65)"},
		"from all addresses": {"ipvs", few, nil, 2, at(15) + "answers; then its health check does not answer (S65)",
			at(16) + "answers; then its health check does not answer (S65)"},
		"from all addresses of the host": {"iptables", "nftables", host, 2,
			at(15) + "answers; then its health check does not answer (S65)",
			at(16) + "answers; then its health check does not answer (S65)"},
	} {
		t.Run(name, func(t *testing.T) {
			var found []string
			for _, line := range lines(t, append([]string{"--file", with(t, "", spec(vips-1), "node-1"), "--from", tc.from,
				"--to", tc.to}, tc.more...)...) {
				if strings.Contains(line, "(S65)") && strings.Contains(line, ":31000: ") {
					found = append(found, line)
				}
			}
			assert.Len(t, found, tc.lines)
			assert.Contains(t, found, tc.first)
			assert.Contains(t, found, tc.last)
		})
	}
	t.Run("unknown addresses", func(t *testing.T) {
		for external, want := range map[int]string{15: "at a Service's own VIPs (S65)",
			16: "at 16 of a Service's own VIPs (S65)"} {
			all := lines(t, "--file", with(t, "", spec(external), "node-1"), "--from", "iptables", "--to", "nftables",
				"--same")
			assert.True(t, slices.ContainsFunc(all, func(line string) bool { return strings.Contains(line, want) }), "%q", all)
		}
	})
}

// thief returns a Service with an external IP.
func thief(port int, address string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {namespace: other, name: thief, creationTimestamp: "2026-02-02T00:00:00Z"}
spec:
  clusterIPs: [10.96.0.11]
  clusterIP: 10.96.0.11
  ipFamilies: [IPv4]
  ports: [{name: http, port: %d}]
  externalIPs: [%s]`, port, address)
}

// Each of many addresses of a Service has its lines.
func TestAllAddressesAreCompared(t *testing.T) {
	file := with(t, "", "externalIPs: ["+externalIPs(1500)+", 192.0.2.1]", "node-1")
	all := lines(t, "--file", file, "--from", "nftables", "--to",
		"--proxy-mode=nftables --feature-gates=AllowServiceExternalIPs=false")
	assert.Len(t, all, 1501)
	for _, a := range []string{"203.0.0.1", "203.5.219.1", "192.0.2.1"} {
		assert.True(t, slices.ContainsFunc(all, func(line string) bool {
			return strings.HasPrefix(line, "shop/web:http/TCP at "+a+":80, from ") && strings.HasSuffix(line, "(S6)")
		}), a)
	}
	all = lines(t, "--file", file, "--from", "nftables", "--to", "ipvs", "--same")
	assert.Len(t, all, 1500, "other ports of what is not the node's")
}

func TestJSONIsForPipelines(t *testing.T) {
	var out bytes.Buffer
	args := []string{"--node-name", "node-1", "-o", "json", "--file", with(t, "nodePort: 30080", "type: NodePort",
		"node-1")}
	n, err := run(t.Context(), args, &out)
	require.NoError(t, err)
	var list []difference
	require.NoError(t, json.Unmarshal(out.Bytes(), &list))
	assert.Len(t, list, n)
	assert.Equal(t, "S36", list[len(list)-1].Rule)
	out.Reset()
	n, err = run(t.Context(), append(args, "--to", "iptables"), &out)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.JSONEq(t, "[]", out.String())
}

// The configuration of kubeadm's DaemonSet is read from the cluster.
func TestTheConfigMapIsRead(t *testing.T) {
	kubeconfig := serving(t, map[string]any{"/api/v1/namespaces/kube-system/configmaps/kube-proxy": corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{
			"config.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\"\n"}}})
	c, _, err := Configuration(t.Context(), "configmap", &source.Cluster{Kubeconfig: kubeconfig})
	require.NoError(t, err)
	assert.EqualValues(t, "iptables", c.Configuration.Mode, "kube-proxy's default")
	_, err = run(t.Context(), []string{"--node-name", "node-1", "--kubeconfig", kubeconfig, "--timeout", "1ms"},
		&bytes.Buffer{})
	require.ErrorContains(t, err, "no complete list of the cluster's objects after 1ms: is the API server reachable?")
}

// failing is a source whose goroutines log errors at the same time, and that never has a complete list.
type failing struct{ ended context.CancelFunc }

func (f failing) Run(ctx context.Context, _ string, _ watch.Handler) error {
	var all sync.WaitGroup
	logger := klog.FromContext(ctx)
	for i := range 8 {
		all.Go(func() {
			logger.WithValues("list", i%2).WithName("source").Error(errors.New("forbidden"), "Cannot list", "kind", i%4)
		})
	}
	all.Wait()
	f.ended()
	<-ctx.Done()
	return nil
}

// Each error is reported once, also without a complete list.
func TestErrorsOfASourceAreTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	objects, err := collect(ctx, failing{cancel}, watch.AllNodes)
	assert.Empty(t, objects)
	require.ErrorIs(t, err, context.Canceled)
	for kind := range 4 {
		assert.Equal(t, 1, strings.Count(err.Error(), fmt.Sprintf("Cannot list: forbidden [kind %d]", kind)), "%v", err)
	}
}

func TestWrongFlagsAreNamed(t *testing.T) {
	file := with(t, "", "", "node-1")
	for want, args := range map[string][]string{
		"one of --node-name and --all-nodes is":   {"--file", file},
		"there are no Services: is the dump":      {"--node-name", "n", "--file", write(t, secondNode)},
		"do not start a proxy: --cleanup":         {"--node-name", "n", "--file", file, "--from", "--cleanup"},
		`unexpected argument "x"`:                 {"--node-name", "n", "x"},
		`-o "xml" is neither text nor json`:       {"--node-name", "n", "-o", "xml"},
		"one of --file and --kubeconfig is":       {"--node-name", "n"},
		"--from: configmap needs --kubeconfig":    {"--node-name", "n", "--file", file, "--from", "configmap"},
		"--to: open /nowhere":                     {"--node-name", "n", "--file", file, "--to", "/nowhere"},
		`--host-addresses: ParseAddr("nonsense")`: {"--node-name", "n", "--file", file, "--host-addresses", "nonsense"},
	} {
		_, err := run(t.Context(), args, &bytes.Buffer{})
		require.ErrorContains(t, err, want)
	}
}

// What the proxies ignore of their configurations, such as a misspelled field, is told: it makes no difference.
func TestWhatAConfigurationSaysInVainIsTold(t *testing.T) {
	file := configFile(t, "mode: nftables\nnftables: {masquradeAll: true}\n")
	o, err := parse([]string{"--file", with(t, "", "", "node-1"), "--node-name", "node-1", "--from", "--config=" + file +
		" --proxy-mode=ipvs", "--to", file}, io.Discard)
	require.NoError(t, err)
	var told, out strings.Builder
	o.warn = &told
	n, err := o.run(t.Context(), &out)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Contains(t, out.String(), "no differences")
	const field = "nftables.masquradeAll: unknown field; it is ignored\n"
	assert.Equal(t, "preflight: --from: "+field+"preflight: --from: --proxy-mode: ignored because a configuration file "+
		"is given\npreflight: --to: "+field, told.String())
}

// serving serves objects by their paths, and returns a kubeconfig for that.
func serving(t *testing.T, objects map[string]any) string {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object, ok := objects[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)
	}))
	t.Cleanup(api.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": [{"name": "c", "context": {"cluster": "c"}}],
		"clusters": [{"name": "c", "cluster": {"server": "`+api.URL+`"}}]}`), 0o600))
	return kubeconfig
}
