package preflight

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// shown has, for each departure of docs/departures.md that objects of a cluster can show, a cluster with it and the one
// line that it yields.
type shown struct {
	row      string // a text of the departure's row in docs/departures.md
	from, to string // iptables and nftables, if they are empty
	cluster  string
	want     string
}

// dual makes the cluster one with both families.
var dual = strings.NewReplacer("address: 192.0.2.1}", "address: 192.0.2.1}, {type: InternalIP, address: "+
	"\"2001:db8::1\"}")

func ranges(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)
	}
	return strings.Join(list, ", ")
}

func externalIPs(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("203.%d.%d.1", i/256, i%256)
	}
	return strings.Join(list, ", ")
}

func endpoints(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "- {addresses: [10.245.%d.%d], nodeName: node-2, conditions: {ready: true}}\n", i/256, i%256)
	}
	return b.String()
}

func ports(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "}, {name: p%d, port: %d", i, 1000+i)
	}
	return b.String() + ","
}

func filled(port, spec string, objects ...string) string {
	text := strings.NewReplacer("PORT", port, "SPEC", spec, "NODE", "node-1").Replace(cluster)
	return strings.Join(append([]string{text}, objects...), "\n---\n")
}

const otherNode = `
apiVersion: v1
kind: Node
metadata: {name: node-2}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}`

func shownDepartures() []shown {
	const second = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-2, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
- {addresses: [10.244.1.5], nodeName: node-1, conditions: {ready: false, serving: false}}`
	withUDP := `{name: http, port: 80}, {name: udp, port: 53, protocol: UDP, nodePort: 30053}`
	return []shown{
		{row: "malformed cluster IP", cluster: strings.ReplaceAll(filled("", ""), "10.96.0.10", "nonsense"),
			want: `Service shop/web: may be used as it is; then ignored: clusterIPs: "nonsense" is not an IP address ` +
				`(S3 to S5)`},
		{row: "malformed port", cluster: strings.ReplaceAll(filled("", ""), "port: 80,", "port: 80}, {name: x, port: 99999,"),
			want: "Service shop/web: may be used as it is; then ignored: ports[1]: port 99999 is out of range (S3 to S5)"},
		{row: "a node port or health-check port out of range", cluster: filled("nodePort: 99999", "type: NodePort"),
			want: "Service shop/web: may be used as it is; then ignored: ports[0]: node port 99999 is out of range (S3 to S5)"},
		{row: "invalid addresses are skipped without saying whose", cluster: filled("", "externalIPs: [nonsense]"),
			want: `Service shop/web: may be used as it is; then ignored: externalIPs: "nonsense" is not an IP address ` +
				`(S3 to S5)`},
		{row: "an unparsable endpoint address", cluster: strings.Replace(filled("", ""), "10.244.2.5", "nonsense", 1),
			want: `EndpointSlice shop/web-1: may be used as it is; then ignored: endpoints[1]: "nonsense" is ` +
				`not an IP address (S3 to S5)`},
		{row: "an endpoint of another family", cluster: strings.Replace(filled("", ""), "10.244.2.5", `"2001:db8::5"`, 1),
			want: `EndpointSlice shop/web-1: may be used as it is; then ignored: endpoints[1]: "2001:db8::5" is ` +
				`not of family IPv4 (S3 to S5)`},
		{row: "a slice port out of range", cluster: strings.Replace(filled("", ""), "port: 8080}", "port: 99999}", 1),
			want: "EndpointSlice shop/web-1: may be used as it is; then ignored: ports[0]: port 99999 is out of range " +
				"(S3 to S5)"},
		{row: "an address in several slices", cluster: filled("", "", second),
			want: "shop/web: endpoint 10.244.1.5 is in two slices with different conditions, and either may count; then " +
				"the most usable one counts (S17)"},
		{row: "an address twice in one slice", cluster: filled("", "") +
			"- {addresses: [10.244.2.5], nodeName: node-1, conditions: {ready: false}}",
			want: "shop/web: endpoint 10.244.2.5 is in one slice twice, and the later entry counts, which gets no traffic; " +
				"then the most usable one counts (S17)"},
		{row: "a zone hint with an empty name", cluster: strings.Replace(filled("", ""), "nodeName: node-2,",
			"nodeName: node-2, hints: {forZones: [{name: \"\"}]},", 1),
			want: "EndpointSlice shop/web-1: a zone hint without a name counts; then it is ignored (S22)"},
		{row: "serves a VIP with any number of source ranges", from: "nftables",
			cluster: filled("nodePort: 30080", "type: LoadBalancer\n  loadBalancerSourceRanges: "+
				"["+ranges(16385)+"]\nstatus: {loadBalancer: "+
				"{ingress: [{ip: 203.0.113.9}]}}"),
			want: "shop/web:http/TCP: it is served with all its source ranges; then not everything is served: "},
		{row: "programs any number of addresses times ports", from: "nftables", cluster: strings.Replace(
			filled("", "externalIPs: ["+externalIPs(60000)+"]"), "port: 80,",
			"port: 80}, {name: b, port: 81}, {name: c, port: 82,", 1),
			want: "shop/web:c/TCP: all its addresses and ports are served; then not everything is served: "},
		{row: "what a Service and a namespace ask for is not limited", from: "nftables",
			cluster: strings.Replace(filled("", "externalIPs: ["+externalIPs(1000)+"]"), "endpoints:\n",
				"endpoints:\n"+endpoints(1100), 1),
			want: "shop/web:http/TCP: all its endpoints are served at all its addresses; then not everything is served: "},
		{row: "makes an endpoint for each address", from: "nftables", cluster: strings.NewReplacer(
			"endpoints:\n", "endpoints:\n"+endpoints(1100), "port: 80,", "port: 80"+ports(300),
		).Replace(filled("", "")),
			want: "shop/web:p99/TCP: all its ports are served; then not everything is served: "},
		{row: "any number of endpoints has affinity", from: "iptables", to: "iptables", cluster: strings.Replace(
			filled("", "sessionAffinity: ClientIP"), "endpoints:\n", "endpoints:\n"+endpoints(2100), 1),
			want: "shop/web:http/TCP: all its endpoints have session affinity; then it is served without session affinity: " +
				"a service may have 2048 endpoints with it (S32)"},
		{row: "any number of endpoints has affinity", from: "nftables", cluster: strings.NewReplacer(
			"endpoints:\n", "endpoints:\n"+endpoints(1100), "port: 80,", "port: 80"+ports(30),
			"port: 8080", "port: 8080"+strings.TrimSuffix(ports(30), ","),
		).Replace(filled("", "sessionAffinity: ClientIP")),
			want: "shop/web:p9/TCP: all its endpoints have session affinity; then it is served without session affinity: " +
				"a service may have 32768 endpoints with it (S32)"},
		{row: "two Services with one external IP", from: "nftables",
			cluster: filled("", "externalIPs: [203.0.113.1]", thief(80, "203.0.113.1")),
			want: "other/thief:http/TCP: this service or the other one is served there, at random; then not everything is " +
				"served: 203.0.113.1:80/TCP " +
				"belongs to shop/web:http/TCP (S59)"},
		{row: "an external IP that is an address of the node", from: "nftables",
			cluster: filled("nodePort: 30080", "type: NodePort", thief(30080, "192.0.2.1")),
			want: "other/thief:http/TCP: it is served, before the node port; then not everything is served: " +
				"192.0.2.1:30080/TCP "},
		{row: "where the node has no address of a family", from: "nftables",
			cluster: strings.NewReplacer("ipFamilies: [IPv4]", "ipFamilies: [IPv4, IPv6]", "clusterIPs: [10.96.0.10]",
				`clusterIPs: [10.96.0.10, "fd00::10"]`).Replace(filled("nodePort: 30080", "type: NodePort")),
			want: "shop/web: its node ports are on all IPv6 addresses, because the node has no primary one; then they are on " +
				"none (S35)"},
		{row: "serves node ports of TCP alone on 127.0.0.1", from: gated, to: gated,
			cluster: strings.Replace(filled("", "type: NodePort"), "{name: http, port: 80, }", withUDP, 1) + `
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-3, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: udp, port: 5353, protocol: UDP}]
endpoints: [{addresses: [10.244.2.5], nodeName: node-2}]`,
			want: "shop/web:udp/UDP at 127.0.0.1:30053, from the node: rejected; then delivered to 1 endpoint, with an " +
				"address of the node as the source (S36a)"},
		{row: "health checks listen in the Service's family", from: "nftables", cluster: dual.Replace(filled(
			"nodePort: 30080", "type: LoadBalancer\n  externalTrafficPolicy: Local\n  healthCheckNodePort: 31000")),
			want: "shop/web: its health check answers in the service's family alone, on port 31000; then it answers in both " +
				"families (S38)"},
		{row: "health checks answer where node ports do", cluster: filled("nodePort: 30080", "type: LoadBalancer\n  "+
			"externalTrafficPolicy: Local\n  healthCheckNodePort: 31000\nstatus: {loadBalancer: {ingress: [{ip: "+
			"203.0.113.9}]}}"), from: few, to: few,
			want: "shop/web at 203.0.113.9:31000: its health check does not answer; then its health check answers (S65)"},
		{row: "sends external traffic of a Local service to other nodes", from: "ipvs", to: "ipvs",
			cluster: strings.Replace(filled("nodePort: 30080", "type: NodePort\n  externalTrafficPolicy: Local"),
				"nodeName: node-1", "nodeName: node-3", 1),
			want: "shop/web:http/TCP at 192.0.2.1:30080, from a pod of another node and outside: sent to endpoints of other " +
				"nodes, whose replies do not come back through this one; then dropped (S58)"},
		{row: "source ranges work as in the other modes", from: "ipvs", to: "ipvs",
			cluster: filled("", "type: LoadBalancer\n  loadBalancerSourceRanges: [192.0.2.64/26]\n"+
				"status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}"),
			want: "shop/web:http/TCP at 203.0.113.9:80, from the node: delivered if the program has bound an address of the " +
				"node, otherwise dropped; then dropped (S26)"},
		{row: "the node itself is not refused at external", from: "iptables", to: "iptables",
			cluster: strings.ReplaceAll(filled("", "externalIPs: [203.0.113.1]"), "ready: true", "ready: false"),
			want:    "shop/web:http/TCP at 203.0.113.1:80, from the node: not served; then rejected (S25)"},
		{row: "node port without endpoints is refused at", from: "--proxy-mode=iptables --nodeport-addresses=198.51.100.0/24",
			to:      "--proxy-mode=iptables --nodeport-addresses=198.51.100.0/24",
			cluster: strings.ReplaceAll(filled("nodePort: 30080", "type: NodePort"), "ready: true", "ready: false"),
			want:    "shop/web:http/TCP at 192.0.2.1:30080, from the node and a pod of this node and outside: rejected; then "},
		{row: "lists the address of another node", from: "ipvs", to: "ipvs",
			cluster: filled("", "externalIPs: [192.0.2.2]", otherNode),
			want: "shop/web at other ports of 192.0.2.2: refused: this node does not reach the machine that has the " +
				"address; then not served (S63)"},
		{row: "affinity at a Local service's external address is a hash", from: "iptables", to: "ipvs",
			cluster: filled("", "externalIPs: [203.0.113.1]\n  externalTrafficPolicy: Local\n  sessionAffinity: ClientIP"),
			want: "shop/web: the node and its pods stay with an endpoint of its external addresses for 3h0m0s; then they " +
				"stay with what a hash of their address says, without a timeout (S32)"},
	}
}

// gated are flags with which mode nftables serves node ports on 127.0.0.1.
const gated = "--proxy-mode=nftables --feature-gates=KubeProxyNFTablesLocalhostNodePorts=true " +
	"--nodeport-addresses=primary,localhost"

// Each departure that objects can show yields its line.
func TestEachDepartureYieldsItsLine(t *testing.T) {
	for _, test := range shownDepartures() {
		t.Run(test.row, func(t *testing.T) {
			from, to := test.from, test.to
			if from == "" {
				from = "nftables"
			}
			if to == "" {
				to = "nftables"
			}
			all := lines(t, "--file", write(t, test.cluster), "--from", from, "--to", to)
			assert.True(t, slices.ContainsFunc(all, func(line string) bool { return strings.HasPrefix(line, test.want) }),
				"%.3000s", all)
		})
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := t.TempDir() + "/cluster.yaml"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// hidden has the departures that no object shows, by a text of their row, with the reason.
func hidden() map[string]string {
	const (
		allowed = "the API server does not admit such an object"
		order   = "a question of the order of events, which nobody knows afterwards"
		cost    = "the same traffic, with less work"
		alike   = "alike for all services"
		windows = "preflight compares the modes of Linux"
	)
	return map[string]string{
		"waits until ServiceCIDRs are listed": alike, "skips headless and ExternalName": alike,
		"panics without an affinity configuration": allowed, "a Service without a type": allowed,
		"programs an affinity timeout of zero": allowed, "a slice whose service label changes": order,
		"a slice that was deleted and created again": order, "any difference of a slice is a change": cost,
		"sorts by the string": alike, "keeps the trigger time of every change": cost,
		"node hints have a feature gate": alike, "treats a loopback address as the node's own": alike,
		"exits when the node's IPs change": order, "exits when the Node object is deleted": order,
		"exits if the node has podCIDRs only": alike, "a node whose object has never been seen": alike,
		"a range selects link-local": alike, "a conntrack `min` above": alike, "an `nf_conntrack_max` of 0": alike,
		"a conntrack timeout below one second": alike, "fails to start if a parameter": alike,
		"counts a LoadBalancer that has no address yet": "about a metric", "masquerade every packet that has the mark": alike,
		"a set of clients for each endpoint": alike, "forgets the clients of a removed endpoint": alike,
		"a lowered timeout changes nothing":     order,
		"serves them only if nodePortAddresses": alike, "a port that cannot be bound": alike,
		"an endpoint that does not accept": alike, "connections end with the port's last endpoint": alike,
		"a Service whose rules are refused":  "the line about what is not served says it",
		"a health-check port that is in use": alike, "the policy of INPUT": alike,
		"also after removed Services": alike, "keeps flows to an address that the node": order,
		"keeps flows to the node ports": order, "treats an interrupted dump": alike,
		"deletes flows to endpoints that are not serving": order, "treats a flow to any address": order,
		"counts the endpoints of the last one":   order,
		"after a sync there is none for":         "about the time that changes take",
		"begins again whenever somebody commits": cost, "a failed sync is tried again": alike,
		"whose etcd was restored from a backup": order, "the whole family is written again": cost,
		"the next change after a failure": cost,
		"a change of ServiceCIDRs waits":  order, "HNS load balancers that others": windows, "when HNS stops": windows,
		"rules that others remove are restored": alike, "mode kernelspace deletes": windows,
		"names: chains": alike, "`NodePortAddresses` as the zero value": alike, "`LocalhostNodePorts` is off": alike,
		"also counts the jumps": "about a metric", "the counters of nfacct": "about a metric", "instead of iptables " +
			"and ipsets": alike,
		"endpoints of a service with different ports": windows, "an endpoint that is a cluster IP": windows,
		"never goes to a pod's host port":    "a question of pods",
		"virtual servers that others delete": order, "protects others' virtual servers": alike,
		"remote endpoints that are out of date": windows, "an endpoint whose node is another": windows,
		"the fallback to terminating": windows, "no affinity timeout, no source": windows,
		"chains of type nat at priorities dstnat": "another program",
		"masquerades everything":                  "another program", "accepts connections that should be dropped": "another program",
		"no SCTP; detects": "another program",
	}
}

// Each row of docs/departures.md has a cluster that shows it, or a reason why none does, so that new rows are not
// forgotten here.
func TestEachDepartureIsLookedFor(t *testing.T) {
	data, err := os.ReadFile("../../../docs/departures.md")
	require.NoError(t, err)
	reasons := hidden()
	for _, s := range shownDepartures() {
		reasons[s.row] = "shown"
	}
	used := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| rule |") || strings.HasPrefix(line, "| backend |") {
			continue
		}
		var found []string
		for text := range reasons {
			if strings.Contains(line, text) {
				found = append(found, text)
				used[text] = true
			}
		}
		assert.Len(t, found, 1, "%s", line)
	}
	for text := range reasons {
		assert.True(t, used[text], "no row has %q any more", text)
	}
}

// An address beyond a limit is not reported as contested.
func TestALimitIsNamed(t *testing.T) {
	for reason, want := range map[frontend.Reason]string{
		frontend.AddressInUse:           "S59",
		frontend.TooManyFrontends:       "frontend.Limits",
		frontend.TooManySourceRanges:    "S26",
		frontend.TooManyDestinations:    "frontend.Limits",
		frontend.TooManyEndpoints:       "S60",
		frontend.TooManyStickyEndpoints: "S32",
		frontend.TooManyStickyPorts:     "S32",
	} {
		assert.Equal(t, want, refusal{reason: reason}.difference("").Rule, reason)
	}
}

// A cluster without any departure yields no line but for what the modes do with all cluster IPs.
func TestAClusterWithoutDeparturesYieldsNothing(t *testing.T) {
	file := write(t, dual.Replace(filled("", "")))
	for _, from := range []string{"iptables", "ipvs", "nftables"} {
		for _, to := range []string{"iptables", "ipvs", "nftables"} {
			for _, more := range [][]string{nil, {"--same"}} {
				var want []string
				guards := func(mode string, upstream bool) bool { return mode == "nftables" || mode == "ipvs" && !upstream }
				switch before := guards(from, more == nil); {
				case !before && guards(to, false):
					want = append(want, "addresses of the ServiceCIDRs that no service has: left to the node's routes; then "+
						"dropped (S33)")
				case before && !guards(to, false):
					want = append(want, "addresses of the ServiceCIDRs that no service has: dropped; then left to the node's "+
						"routes (S33)")
				}
				switch {
				case from == "iptables" && to != "iptables":
					want = append(want, "ports of cluster IPs that no service has: left to the node's routes; then refused (S33)")
				case from != "iptables" && to == "iptables":
					want = append(want, "ports of cluster IPs that no service has: refused; then left to the node's routes (S33)")
				}
				assert.Equal(t, want, lines(t, append([]string{"--file", file, "--from", from, "--to", to}, more...)...),
					"%s %s", from, to)
			}
		}
	}
}

// A name that no Node has is an error: the answers would be those of a node without addresses and pods.
func TestANodeThatDoesNotExistIsAnError(t *testing.T) {
	_, err := run(t.Context(), []string{"--file", write(t, filled("", "")), "--node-name", "nod-1"}, &strings.Builder{})
	assert.EqualError(t, err, `there is no Node "nod-1": check --node-name; there are 1 Nodes, such as ["node-1"]`)
	_, err = run(t.Context(), []string{"--file", write(t, "apiVersion: v1\nkind: Service\nmetadata: {name: a, "+
		"namespace: b}"),
		"--all-nodes"}, &strings.Builder{})
	assert.EqualError(t, err, "--all-nodes: there are no Nodes")
}

// Addresses that nodes have beside those of their Node objects, of all nodes or of one.
func TestAllNodes(t *testing.T) {
	file := write(t, filled("nodePort: 30080", "type: NodePort", secondNode))
	var out strings.Builder
	n, err := run(t.Context(), []string{"--file", file, "--all-nodes", "--from", "ipvs", "--host-addresses",
		"198.51.100.1,node-2=198.51.100.2", "-o", "json"}, &out)
	require.NoError(t, err)
	assert.Equal(t, 3, n)
	var list []difference
	require.NoError(t, json.Unmarshal([]byte(out.String()), &list))
	require.Len(t, list, 3)
	assert.Equal(t, "addresses of the ServiceCIDRs that no service has", list[0].Object)
	list = list[1:]
	assert.Equal(t, "198.51.100.1:30080", list[0].Destination)
	assert.Equal(t, []string{"node-1", "node-2"}, list[0].Nodes)
	assert.Equal(t, "198.51.100.2:30080", list[1].Destination)
	assert.Equal(t, []string{"node-2"}, list[1].Nodes)
	_, err = run(t.Context(), []string{"--file", file, "--all-nodes", "--host-addresses", "node-3=198.51.100.2"}, &out)
	require.EqualError(t, err, `--host-addresses: there is no Node "node-3"`)
}

const secondNode = `apiVersion: v1
kind: Node
metadata: {name: node-2}
spec: {podCIDRs: [10.244.2.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.2}]}`

// A node that cannot be compared does not end the comparison of the others, and is an error.
func TestANodeThatCannotBeComparedIsNamed(t *testing.T) {
	file := write(t, filled("nodePort: 30080", "type: NodePort", strings.Replace(secondNode, "spec: "+
		"{podCIDRs: [10.244.2.0/24]}\n", "", 1)))
	const byNode = "--proxy-mode=iptables --detect-local-mode=NodeCIDR"
	var out strings.Builder
	n, err := run(t.Context(), []string{"--file", file, "--all-nodes", "--from", byNode, "--to", byNode +
		" --iptables-localhost-nodeports=false"}, &out)
	require.ErrorContains(t, err, "node node-2 was not compared: ")
	require.ErrorContains(t, err, "podCIDRs")
	assert.Equal(t, 1, n)
	assert.Equal(t, `S36: node ports on loopback addresses, 1 Service
  To keep it: --iptables-localhost-nodeports=true.
  From the node: delivered, with an address of the node as the source; then not served
    shop/web:http/TCP at 127.0.0.1:30080, on node-1

NOT compared: node-2.
Compared on node-1: 1 Service, served by kube-proxy in mode iptables, and by this one in mode iptables.
`, out.String())
	out.Reset()
	_, err = run(t.Context(), []string{"--file", file, "--all-nodes", "--from", byNode, "--to", byNode}, &out)
	require.ErrorContains(t, err, "node node-2 was not compared: ")
	assert.NotContains(t, out.String(), "no differences")
	out.Reset()
	n, err = run(t.Context(), []string{"--file", file, "--all-nodes", "--from", byNode, "--to", byNode, "-o", "json"},
		&out)
	require.Error(t, err)
	assert.Zero(t, n)
	var list []difference
	require.NoError(t, json.Unmarshal([]byte(out.String()), &list))
	require.Len(t, list, 1)
	assert.Equal(t, "Node node-2", list[0].Object)
	assert.Contains(t, list[0].NotCompared, "podCIDRs")
}

// Another program, with other modes, serves nodes with Windows.
func TestANodeWithWindowsIsNotCompared(t *testing.T) {
	text := filled("nodePort: 30080", "type: NodePort", strings.Replace(secondNode, "node-2", "node-2, "+
		"labels: {kubernetes.io/os: windows}", 1))
	file := write(t, text)
	var out strings.Builder
	n, err := run(t.Context(), []string{"--file", file, "--node-name", "node-2", "--from", "nftables"}, &out)
	require.EqualError(t, err, "node node-2 was not compared: it runs Windows, and the modes are those of Linux")
	assert.Zero(t, n)
	assert.Equal(t, "NOT compared: node-2.\nCompared on no node: 0 Services, served by kube-proxy in mode nftables, and "+
		"by this one in mode nftables.\n", out.String())

	out.Reset()
	var warned strings.Builder
	o, err := parse([]string{"--file", file, "--all-nodes", "--from", "nftables"}, &out)
	require.NoError(t, err)
	o.warn = &warned
	n, err = o.run(t.Context(), &out)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Equal(t, "preflight: --all-nodes: left out, because they run Windows: node-2\n", warned.String())
	assert.Equal(t, "no differences\nCompared on node-1: 1 Service, served by kube-proxy in mode nftables, and by this "+
		"one in mode nftables.\n", out.String())

	file = write(t, strings.Replace(text, "metadata: {name: node-1}", "metadata: {name: node-1, labels: "+
		"{kubernetes.io/os: windows}}", 1))
	_, err = run(t.Context(), []string{"--file", file, "--all-nodes", "--from", "nftables"}, &out)
	require.EqualError(t, err, "--all-nodes: all Nodes run Windows, and the modes are those of Linux")
}

// Where a node serves node ports, and with which address it masquerades, is not known without its addresses.
func TestANodeWithoutAnAddressIsNotCompared(t *testing.T) {
	file := write(t, strings.Replace(filled("nodePort: 30080", "type: NodePort"),
		"status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}\n", "", 1))
	var out strings.Builder
	n, err := run(t.Context(), []string{"--file", file, "--node-name", "node-1", "--from", "nftables"}, &out)
	require.EqualError(t, err, "node node-1 was not compared: its Node object has no IP address")
	assert.Zero(t, n)
	assert.NotContains(t, out.String(), "no differences")
}

// A malformed document is an error, because it is not known what is missing.
func TestAMalformedDocumentIsAnError(t *testing.T) {
	for _, text := range []string{"kind: Service\n  wrong: indentation", "just text"} {
		_, err := run(t.Context(), []string{"--file", write(t, filled("", "", text)), "--node-name", "node-1"},
			&strings.Builder{})
		require.ErrorContains(t, err, "cluster.yaml: document 5", text)
	}
}

// What a dump of the cluster lacks is not compared, and is not "no differences".
func TestAnIncompleteDumpIsAnError(t *testing.T) {
	const all = "--proxy-mode=nftables --masquerade-all"
	text := filled("", "")
	none := text[:strings.LastIndex(text, "---")]
	_, err := run(t.Context(), []string{"--file", write(t, none), "--node-name", "node-1", "--from", "nftables", "--to",
		all}, &strings.Builder{})
	require.EqualError(t, err, "there are no EndpointSlices: is the dump of the cluster complete?")
	old := strings.Replace(text, "discovery.k8s.io/v1", "discovery.k8s.io/v1beta1", 1)
	for _, text := range []string{old, old + "---" + text[strings.LastIndex(text, "---")+3:]} {
		_, err = run(t.Context(), []string{"--file", write(t, text), "--node-name", "node-1", "--from", "nftables", "--to",
			all}, &strings.Builder{})
		require.ErrorContains(t, err, "discovery.k8s.io/v1beta1 kind EndpointSlice")
	}
	i := strings.Index(text, "apiVersion: networking.k8s.io/v1")
	without := write(t, text[:i]+text[i+strings.Index(text[i:], "---")+4:])
	var out strings.Builder
	n, err := run(t.Context(), []string{"--file", without, "--node-name", "node-1", "--from", "ipvs"}, &out)
	const why = "there are no ServiceCIDRs, which every cluster has: is the dump complete, and may they be listed?"
	require.EqualError(t, err, "addresses of the ServiceCIDRs that no service has were not compared: "+why)
	assert.Zero(t, n)
	assert.Equal(t, "NOT compared: addresses of the ServiceCIDRs that no service has: "+why+"\nCompared on node-1: 1 "+
		"Service, served by kube-proxy in mode ipvs, and by this one in mode nftables.\n", out.String())
	out.Reset()
	_, err = run(t.Context(), []string{"--file", without, "--all-nodes", "--from", "ipvs", "-o", "json"}, &out)
	require.Error(t, err)
	var list []difference
	require.NoError(t, json.Unmarshal([]byte(out.String()), &list))
	require.Len(t, list, 1)
	assert.Equal(t, why, list[0].NotCompared)
	assert.Equal(t, []string{"node-1"}, list[0].Nodes)
	out.Reset()
	n, err = run(t.Context(), []string{"--file", without, "--node-name", "node-1", "--from", "nftables"}, &out)
	require.NoError(t, err, "both modes treat them alike")
	assert.Zero(t, n)
	assert.Contains(t, out.String(), "no differences")
}

// What is not from a cluster, as a manifest, is not "no differences".
func TestAServiceWithoutAClusterIPIsNotCompared(t *testing.T) {
	text := strings.Replace(filled("nodePort: 30080", "type: NodePort"), "  clusterIP: 10.96.0.10\n  clusterIPs: "+
		"[10.96.0.10]\n", "", 1)
	const why = "it has no cluster IP, which an API server gives it: is the file a dump of the cluster?"
	var out strings.Builder
	n, err := run(t.Context(), []string{"--file", write(t, text), "--node-name", "node-1", "--from", "nftables"}, &out)
	require.EqualError(t, err, "connections to Service shop/web were not compared: "+why)
	assert.Zero(t, n)
	assert.Equal(t, "NOT compared: connections to Service shop/web: "+why+"\nCompared on node-1: 0 Services, served by "+
		"kube-proxy in mode nftables, and by this one in mode nftables.\n", out.String())
	out.Reset()
	const more = `
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: headless}
spec: {clusterIP: None}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: name}
spec: {type: ExternalName}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: others, labels: {service.kubernetes.io/service-proxy-name: other}}
spec: {}`
	_, err = run(t.Context(), []string{"--file", write(t, filled("", "", more)), "--node-name", "node-1", "--from",
		"nftables"}, &out)
	require.NoError(t, err)
	assert.Contains(t, out.String(), "no differences\nCompared on node-1: 1 Service, ", "no proxy serves the others")
}

// People read one fact once.
func TestTheTextIsGrouped(t *testing.T) {
	services := make([]string, 6)
	for i := range services {
		services[i] = fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: shop, name: s%d}
spec:
  clusterIP: 10.96.1.%[1]d
  clusterIPs: [10.96.1.%[1]d]
  type: NodePort
  ports: [{port: 80, nodePort: 3100%[1]d}]`, i)
	}
	var out strings.Builder
	n, err := run(t.Context(), []string{"--file", write(t, filled("nodePort: 30080", "type: NodePort", services...)),
		"--node-name", "node-1", "--from", "iptables", "--to", "nftables"}, &out)
	require.NoError(t, err)
	assert.Equal(t, 10, n)
	assert.Equal(t, `S36: node ports on loopback addresses, 7 Services
  To keep it: --feature-gates=KubeProxyNFTablesLocalhostNodePorts=true --nodeport-addresses=primary,localhost.
  From the node: rejected; then not served
    shop/s0/TCP at 127.0.0.1:31000
    shop/s1/TCP at 127.0.0.1:31001
    shop/s2/TCP at 127.0.0.1:31002
    and 3 more, which -o json lists
  From the node: delivered, with an address of the node as the source; then not served
    shop/web:http/TCP at 127.0.0.1:30080

S33: ports and addresses that no service has
  left to the node's routes; then dropped
    addresses of the ServiceCIDRs that no service has
  left to the node's routes; then refused
    ports of cluster IPs that no service has

S35: which addresses serve node ports
  To keep it: nodePortAddresses as before (--nodeport-addresses=all).
  served; then not served
    node ports and health checks of 7 Services at IPv4 addresses of the node that its Node object does not list

Compared on node-1: 7 Services, served by kube-proxy in mode iptables, and by this one in mode nftables.
`, out.String())
	out.Reset()
	n, err = run(t.Context(), []string{"--file", write(t, filled("", "")), "--node-name", "node-1", "--from", "nftables"},
		&out)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.Equal(t, "no differences\nCompared on node-1: 1 Service, served by kube-proxy in mode nftables, and by "+
		"this one in mode nftables.\n", out.String())
}

// A Service with many ports is one Service.
func TestServicesAreCounted(t *testing.T) {
	var out strings.Builder
	_, err := run(t.Context(), []string{"--file", write(t, filled("nodePort: 30080}, {port: 81, nodePort: 30081, name: b",
		"type: NodePort")), "--node-name", "node-1", "--from", "iptables"}, &out)
	require.NoError(t, err)
	assert.Contains(t, out.String(), "S36: node ports on loopback addresses, 1 Service\n")
}

// The kernel's connection tracking says whether a client uses a node port on 127.0.0.1.
func TestTrackedConnections(t *testing.T) {
	one, two := 1, 2
	c := &comparison{Command: &Command{}}
	assert.Equal(t, "shop/web; the node is tracking 1 connection", c.where(difference{Object: "shop/web",
		Connections: &one}))
	assert.Equal(t, "shop/web; the node is tracking 2 connections", c.where(difference{Object: "shop/web",
		Connections: &two}))
}

// Every rule that a difference can have is explained.
func TestEveryRuleIsExplained(t *testing.T) {
	for _, s := range shownDepartures() {
		rule := s.want[strings.LastIndex(s.want, "(")+1:]
		if rule = strings.TrimSuffix(rule, ")"); strings.HasPrefix(rule, "S") {
			assert.NotEqual(t, "see docs/semantics.md", explain(rule), rule)
		}
	}
}
