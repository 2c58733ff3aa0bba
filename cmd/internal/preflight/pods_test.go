package preflight

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// A pod of another node is asked about, and not another node in its place, whose address is that of its programs.
func TestAPodOfAnotherNodeIsNotTheNode(t *testing.T) {
	const exporter = `
apiVersion: v1
kind: Service
metadata: {namespace: zz, name: exporter}
spec: {clusterIP: 10.96.0.12, clusterIPs: [10.96.0.12], ipFamilies: [IPv4], ports: [{name: http, port: 9100}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: zz, name: exporter, labels: {kubernetes.io/service-name: exporter}}
addressType: IPv4
ports: [{name: http, port: 9100}]
endpoints: [{addresses: [192.0.2.2], nodeName: node-2}]`
	const local = "type: NodePort\n  externalTrafficPolicy: Local"
	const clusterIP = "shop/web:http/TCP at 10.96.0.10:80, from a pod of another node: delivered to 2 endpoints, with " +
		"the client's address as the source; then delivered to 2 endpoints, with an address of the node as the source (S30)"
	const podCIDRs = "spec: {podCIDRs: [10.244.2.0/24]}\n"
	for name, cluster := range map[string]string{
		"beside a program in the network of that node": filled("nodePort: 30080", local, secondNode, exporter),
		"without podCIDRs": filled("nodePort: 30080", local, strings.Replace(secondNode, podCIDRs, "", 1), exporter),
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, []string{clusterIP,
				"shop/web:http/TCP at 192.0.2.1:30080, from a pod of another node: delivered to 2 endpoints, with the client's " +
					"address as the source; then delivered to 1 endpoint, with the client's address as the source (S27)",
				"zz/exporter:http/TCP at 10.96.0.12:9100, from a pod of another node: delivered to 1 endpoint, with the " +
					"client's address as the source; then delivered to 1 endpoint, with an address of the node as the source " +
					"(S30)",
			}, lines(t, "--file", write(t, cluster), "--from",
				"--proxy-mode=nftables --cluster-cidr=10.244.0.0/16", "--to", "--proxy-mode=nftables --detect-local-mode=NodeCIDR"))
		})
	}
	here := strings.Replace(filled("nodePort: 30080", local, secondNode), "10.244.2.5], nodeName: node-2",
		"10.244.1.6], nodeName: node-1", 1)
	assert.Equal(t, []string{clusterIP}, lines(t, "--file", write(t, here), "--from",
		"--proxy-mode=nftables --cluster-cidr=10.244.0.0/16", "--to",
		"--proxy-mode=nftables --detect-local-mode=NodeCIDR"), "all endpoints are on this node")
}
