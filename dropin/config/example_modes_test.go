//go:build !windows

package config_test

import (
	"fmt"
	"net/netip"
	"os"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/model"
)

// A file of kube-proxy, as it is in many clusters.
func Example() {
	c, warnings, err := config.Load([]byte(`
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clusterCIDR: 10.244.0.0/16
udpIdleTimeout: 250ms
nftables:
  minSyncPeriod: 2s
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, w := range warnings {
		fmt.Println("warning:", w)
	}

	// The node's IPs, and the modes that its kernel supports.
	nodeIPs := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	node, _, err := config.DetectNodeIPs(c, nodeIPs, []model.Family{model.IPv4, model.IPv6})
	if err != nil {
		fmt.Println(err)
		return
	}
	state, _, _, err := config.StateOptions(c, "node-1", node)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("families:", state.Families)
	fmt.Println("local traffic comes from:", state.DetectLocal.ClusterCIDRs)
	fmt.Println("at least between two syncs:", config.RunOptions(c).MinInterval)
	// Output:
	// warning: udpIdleTimeout: unknown field; it is ignored
	// families: [IPv4 IPv6]
	// local traffic comes from: [10.244.0.0/16]
	// at least between two syncs: 2s
}

// Write is what --write-config-to does.
func ExampleWrite() {
	c, _, err := config.Load(
		[]byte(`{apiVersion: kubeproxy.config.k8s.io/v1alpha1, kind: KubeProxyConfiguration, mode: nftables}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := config.Write(os.Stdout, c); err != nil {
		fmt.Println(err)
	}
	// Output:
	// apiVersion: kubeproxy.config.k8s.io/v1alpha2
	// bindAddressHardFail: false
	// clientConnection:
	//   acceptContentTypes: ""
	//   burst: 10
	//   contentType: application/vnd.kubernetes.protobuf
	//   kubeconfig: ""
	//   qps: 5
	// configHardFail: true
	// configSyncPeriod: 15m0s
	// detectLocal: {}
	// enableProfiling: false
	// healthzBindAddress: 0.0.0.0:10256
	// iptables:
	//   localhostNodePorts: true
	//   masqueradeBit: 14
	// ipvs:
	//   masqueradeBit: 14
	//   strictARP: false
	//   tcpFinTimeout: 0s
	//   tcpTimeout: 0s
	//   udpTimeout: 0s
	// kind: KubeProxyConfiguration
	// linux:
	//   conntrack:
	//     maxPerCore: 32768
	//     min: 131072
	//     tcpBeLiberal: false
	//     tcpCloseWaitTimeout: 1h0m0s
	//     tcpEstablishedTimeout: 24h0m0s
	//     udpStreamTimeout: 0s
	//     udpTimeout: 0s
	//   masqueradeAll: false
	//   oomScoreAdj: -999
	// logging:
	//   flushFrequency: 5s
	//   format: text
	//   options:
	//     json:
	//       infoBufferSize: "0"
	//     text:
	//       infoBufferSize: "0"
	//   verbosity: 0
	// metricsBindAddress: 127.0.0.1:10249
	// mode: nftables
	// nftables:
	//   masqueradeBit: 14
	// syncPeriod: 30s
	// windows:
	//   runAsService: false
	// winkernel:
	//   enableDSR: false
	//   forwardHealthCheckVip: false
}
