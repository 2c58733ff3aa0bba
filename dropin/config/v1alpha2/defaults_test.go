package v1alpha2_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
)

const defaults = `
apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
bindAddressHardFail: true
clientConnection:
  acceptContentTypes: ""
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: ""
  qps: 5
configHardFail: true
configSyncPeriod: 15m0s
detectLocal: {}
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
iptables:
  localhostNodePorts: false
  masqueradeBit: 14
ipvs:
  masqueradeBit: 14
  strictARP: false
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
linux:
  conntrack:
    maxPerCore: 32768
    min: 131072
    tcpBeLiberal: false
    tcpCloseWaitTimeout: 1h0m0s
    tcpEstablishedTimeout: 24h0m0s
    udpStreamTimeout: 0s
    udpTimeout: 0s
  masqueradeAll: false
  oomScoreAdj: -999
logging:
  flushFrequency: 5s
  format: text
  options:
    json:
      infoBufferSize: "0"
    text:
      infoBufferSize: "0"
  verbosity: 0
metricsBindAddress: 127.0.0.1:10249
nftables:
  masqueradeBit: 14
syncPeriod: 30s
windows:
  runAsService: false
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
`

func TestEveryDefault(t *testing.T) {
	got, err := yaml.Marshal(v1alpha2.Default())
	require.NoError(t, err)
	assert.YAMLEq(t, defaults, string(got))
}

func TestZeroIsAValueWhereItHasAMeaning(t *testing.T) {
	c := &v1alpha2.KubeProxyConfiguration{}
	require.NoError(t, yaml.Unmarshal([]byte(`
minSyncPeriod: 0s
bindAddressHardFail: false
configHardFail: false
iptables: {masqueradeBit: 0}
ipvs: {masqueradeBit: 0}
nftables: {masqueradeBit: 0}
linux: {oomScoreAdj: 0, conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
`), c))
	v1alpha2.SetDefaults(c)
	assert.Zero(t, c.MinSyncPeriod.Duration)
	assert.False(t, *c.BindAddressHardFail)
	assert.False(t, *c.ConfigHardFail)
	assert.Zero(t, *c.IPTables.MasqueradeBit)
	assert.Zero(t, *c.IPVS.MasqueradeBit)
	assert.Zero(t, *c.NFTables.MasqueradeBit)
	assert.Zero(t, *c.Linux.OOMScoreAdj)
	assert.Zero(t, *c.Linux.Conntrack.MaxPerCore)
	assert.Zero(t, *c.Linux.Conntrack.Min)
	assert.Zero(t, c.Linux.Conntrack.TCPEstablishedTimeout.Duration)
	assert.Zero(t, c.Linux.Conntrack.TCPCloseWaitTimeout.Duration)
}

func TestBindAddresses(t *testing.T) {
	for name, tc := range map[string]struct{ nodeIP, healthz, metrics, wantHealthz, wantMetrics string }{
		"nothing is set":                   {"", "", "", "0.0.0.0:10256", "127.0.0.1:10249"},
		"the node is IPv4":                 {"192.0.2.1", "", "", "0.0.0.0:10256", "127.0.0.1:10249"},
		"the node is IPv6":                 {"2001:db8::1", "", "", "[::]:10256", "[::1]:10249"},
		"v1alpha1 asks for IPv6":           {"::", "", "", "[::]:10256", "[::1]:10249"},
		"addresses without a port get one": {"", "10.0.0.1", "10.0.0.2", "10.0.0.1:10256", "10.0.0.2:10249"},
		"so do IPv6 addresses": {"", "2001:db8::1", "2001:db8::2", "[2001:db8::1]:10256",
			"[2001:db8::2]:10249"},
		"what is set stays":                   {"2001:db8::1", "10.0.0.1:1", "10.0.0.2:2", "10.0.0.1:1", "10.0.0.2:2"},
		"what is wrong is left to be checked": {"", "x", "y", "x", "y"},
	} {
		t.Run(name, func(t *testing.T) {
			healthz, metrics := v1alpha2.BindAddresses(tc.nodeIP, tc.healthz, tc.metrics)
			assert.Equal(t, tc.wantHealthz, healthz)
			assert.Equal(t, tc.wantMetrics, metrics)
		})
	}
}

func TestTheFirstNodeIPDecidesTheBindAddresses(t *testing.T) {
	c := &v1alpha2.KubeProxyConfiguration{NodeIPOverride: []string{"2001:db8::1", "192.0.2.1"}}
	v1alpha2.SetDefaults(c)
	assert.Equal(t, "[::]:10256", c.HealthzBindAddress)
	assert.Equal(t, "[::1]:10249", c.MetricsBindAddress)
}
