package config_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

const (
	v1alpha1Header = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	v1alpha2Header = "apiVersion: kubeproxy.config.k8s.io/v1alpha2\nkind: KubeProxyConfiguration\n"
)

func TestAFullFileInVersionV1alpha1(t *testing.T) {
	needModesOfLinux(t)
	data, err := os.ReadFile("testdata/full-v1alpha1.yaml")
	require.NoError(t, err)
	c, warnings, err := config.Load(data)
	require.NoError(t, err)

	var got bytes.Buffer
	for _, w := range warnings {
		got.WriteString("# warning: " + w.String() + "\n")
	}
	require.NoError(t, config.Write(&got, c))
	fakemodel.Golden(t, "testdata/full-v1alpha2.yaml", got.String())

	again, warnings, err := config.Load(got.Bytes())
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.JSONEq(t, asJSON(t, c), asJSON(t, again))
}

// The file of the test above must have all fields, and none with its default, or it would prove nothing.
func TestTheFullFileIsFull(t *testing.T) {
	data, err := os.ReadFile("testdata/full-v1alpha1.yaml")
	require.NoError(t, err)
	var c, defaults v1alpha1.KubeProxyConfiguration
	require.NoError(t, yaml.UnmarshalStrict(data, &c))
	config.SetDefaultsV1alpha1(&defaults)
	same := sameLeaves("", reflect.ValueOf(c), reflect.ValueOf(defaults))
	assert.ElementsMatch(t, []string{
		"TypeMeta.Kind", "TypeMeta.APIVersion",
		"Logging.Format",         // the other one needs a program that has it
		"NFTables.MasqueradeAll", // so that the other one is lost
	}, same)
}

// sameLeaves returns the fields that are the same in two structs.
func sameLeaves(path string, a, b reflect.Value) []string {
	if _, isLeaf := a.Interface().(json.Marshaler); !isLeaf && a.Kind() == reflect.Struct {
		var same []string
		for i := range a.NumField() {
			same = append(same, sameLeaves(strings.TrimPrefix(path+"."+a.Type().Field(i).Name, "."), a.Field(i),
				b.Field(i))...)
		}
		return same
	}
	if reflect.DeepEqual(a.Interface(), b.Interface()) {
		return []string{path}
	}
	return nil
}

func TestDefaultsOfV1alpha1AreThoseOfV1alpha1(t *testing.T) {
	c, warnings, err := config.Load([]byte(v1alpha1Header))
	require.NoError(t, err)
	assert.Empty(t, warnings)

	want := v1alpha2.Default()
	*want.IPTables.LocalhostNodePorts = true
	*want.BindAddressHardFail = false
	assert.Equal(t, want, c)
}

func TestDefaultsOfV1alpha2(t *testing.T) {
	c, warnings, err := config.Load([]byte(v1alpha2Header))
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, v1alpha2.Default(), c)
}

func TestEveryDefaultOfV1alpha1(t *testing.T) {
	c := &v1alpha1.KubeProxyConfiguration{}
	config.SetDefaultsV1alpha1(c)
	got, err := yaml.Marshal(c)
	require.NoError(t, err)
	assert.YAMLEq(t, `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: ""
  qps: 5
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ""
enableProfiling: false
healthzBindAddress: 0.0.0.0:10256
hostnameOverride: ""
iptables:
  localhostNodePorts: true
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 30s
ipvs:
  excludeCIDRs: null
  minSyncPeriod: 0s
  scheduler: ""
  strictARP: false
  syncPeriod: 30s
  tcpFinTimeout: 0s
  tcpTimeout: 0s
  udpTimeout: 0s
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
mode: ""
nftables:
  masqueradeAll: false
  masqueradeBit: 14
  minSyncPeriod: 0s
  syncPeriod: 30s
nodePortAddresses: null
oomScoreAdj: -999
portRange: ""
showHiddenMetricsForVersion: ""
winkernel:
  enableDSR: false
  forwardHealthCheckVip: false
  networkName: ""
  rootHnsEndpointName: ""
  sourceVip: ""
`, string(got))
}

func TestAnIPv6BindAddressMovesTheOtherAddresses(t *testing.T) {
	for _, address := range []string{"::", "2001:db8::1"} {
		c, warnings, err := config.Load([]byte(v1alpha1Header + "bindAddress: '" + address + "'\n"))
		require.NoError(t, err)
		assert.Empty(t, warnings)
		assert.Equal(t, "[::]:10256", c.HealthzBindAddress)
		assert.Equal(t, "[::1]:10249", c.MetricsBindAddress)
	}
}

func TestLoadWarns(t *testing.T) {
	for name, tc := range map[string]struct {
		file string
		want []config.Warning
	}{
		"of a field that is unknown, with its section": {
			v1alpha1Header + "udpIdleTimeout: 250ms\nconntrack: {max: 0}\n",
			[]config.Warning{
				{"conntrack.max", "unknown field; it is ignored"},
				{"udpIdleTimeout", "unknown field; it is ignored"},
			},
		},
		"of a field of the other version": {
			v1alpha2Header + "bindAddress: 10.0.0.1\n",
			[]config.Warning{{"bindAddress", "unknown field; it is ignored"}},
		},
		"of a field in the wrong case": {
			v1alpha2Header + "Mode: nftables\n",
			[]config.Warning{{"Mode", "unknown field; it is ignored"}},
		},
		"of a field that is there twice, with its line": {
			v1alpha2Header + "hostnameOverride: a\nsyncPeriod: 10s\nhostnameOverride: b\n",
			[]config.Warning{{"hostnameOverride", "line 5: duplicate field; the last one counts"}},
		},
		"of documents that are not read": {
			"# a comment\n---\n" + v1alpha2Header + "hostnameOverride: a\n---\nkind: Other\n",
			[]config.Warning{{"", "the file has more than one document; only the first one is read"}},
		},
		"of nothing when there are only comments around": {
			"# a comment\n---\n" + v1alpha2Header + "\n---\n# the end\n",
			nil,
		},
		"of everything at once": {
			v1alpha1Header + "portRange: 1-2\nhostnameOverride: a\nhostnameOverride: b\nx: 1\n",
			[]config.Warning{
				{"hostnameOverride", "line 5: duplicate field; the last one counts"},
				{"x", "unknown field; it is ignored"},
				{"portRange", `"1-2" is dropped: no proxy has used it since mode userspace was removed`},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, warnings, err := config.Load([]byte(tc.file))
			require.NoError(t, err)
			require.NotNil(t, c)
			assert.Equal(t, tc.want, warnings)
		})
	}
}

func TestTheLastDuplicateCounts(t *testing.T) {
	c, _, err := config.Load([]byte(v1alpha2Header + "hostnameOverride: a\nhostnameOverride: b\n"))
	require.NoError(t, err)
	assert.Equal(t, "b", c.HostnameOverride)
}

func TestLoadFails(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"on an empty file":            {"", "malformed file: it has no apiVersion and kind"},
		"on a file without a version": {"mode: nftables\n", "malformed file: it has no apiVersion and kind"},
		"on something that is not an object": {
			"- a\n", "malformed file: not an object with apiVersion and kind"},
		"on a syntax error, with its line": {
			v1alpha2Header + "mode: a: b\n", "malformed file: yaml: line 3: mapping values are not allowed in this " +
				"context"},
		"on a tab": {
			v1alpha2Header + "linux:\n\tmasqueradeAll: true\n",
			"malformed file: yaml: line 4: found character that cannot start any token"},
		"on broken JSON": {
			`{"apiVersion": "kubeproxy.config.k8s.io/v1alpha2",`,
			"malformed file: yaml: line 1: did not find expected node content"},
		"on another kind": {
			"apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n",
			`kind "KubeletConfiguration" of apiVersion "kubelet.config.k8s.io/v1beta1" is not supported; want ` +
				`KubeProxyConfiguration`},
		"on a version that is not known": {
			"apiVersion: kubeproxy.config.k8s.io/v1beta1\nkind: KubeProxyConfiguration\n",
			`apiVersion "kubeproxy.config.k8s.io/v1beta1" is not supported; want kubeproxy.config.k8s.io/v1alpha1 or ` +
				`kubeproxy.config.k8s.io/v1alpha2`},
		"on a version of a wrong type": {
			"apiVersion: 1\nkind: KubeProxyConfiguration\n",
			"malformed file: apiVersion and kind: json: cannot unmarshal number into Go struct field " +
				"document.apiVersion of type string"},
		"on all values of a wrong type at once, v1alpha1": {
			v1alpha1Header + "iptables: {syncPeriod: 30, masqueradeBit: x}\nconntrack: {udpTimeout: 5x, min: " +
				"5000000000}\nfeatureGates: {A: b}\n",
			"malformed file: conntrack.min: 5000000000: must be of type int32\n" +
				`conntrack.udpTimeout: "5x": time: unknown unit "x" in duration "5x"` + "\n" +
				`featureGates.A: "b": must be of type bool` + "\n" +
				`iptables.masqueradeBit: "x": must be of type int32` + "\n" +
				"iptables.syncPeriod: 30: must be of type string"},
		"on all values of a wrong type at once, v1alpha2": {
			v1alpha2Header +
				"mode: [nftables]\nlinux: {masqueradeAll: 'yes', conntrack: 5}\nnodeIPOverride: 10.0.0.1\n",
			"malformed file: linux.conntrack: 5: must be of type object\n" +
				`linux.masqueradeAll: "yes": must be of type bool` + "\n" +
				`mode: ["nftables"]: must be of type string` + "\n" +
				`nodeIPOverride: "10.0.0.1": must be of type list`},
		"on values that are wrong, by the names of v1alpha2": {
			v1alpha2Header + "linux: {oomScoreAdj: -2000, conntrack: {min: -1}}\n",
			"invalid configuration: linux.oomScoreAdj: Invalid value: -2000: must be between -1000 and 1000\n" +
				"linux.conntrack.min: Invalid value: -1: must be at least 0"},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := config.Load([]byte(tc.file))
			require.EqualError(t, err, tc.want)
			assert.Nil(t, c)
		})
	}
}

func TestLoadFailsInAModeOfLinux(t *testing.T) {
	needModesOfLinux(t)
	for name, tc := range map[string]struct{ file, want string }{
		"on values that are wrong, by the names of v1alpha1": {
			v1alpha1Header + "mode: ipvs\nbindAddress: x\nclusterCIDR: 10.0.0.0/8,y\noomScoreAdj: -2000\niptables: " +
				"{masqueradeBit: 32}\n" +
				"ipvs: {syncPeriod: 1s, minSyncPeriod: 2s}\nconntrack: {min: -1}\n",
			`invalid configuration: ipvs.minSyncPeriod: Invalid value: "2s": must not exceed syncPeriod, 1s` +
				"\n" +
				`ipvs.syncPeriod: Invalid value: "1s": must not be less than minSyncPeriod, 2s` + "\n" +
				"iptables.masqueradeBit: Invalid value: 32: must be between 0 and 31\n" +
				"oomScoreAdj: Invalid value: -2000: must be between -1000 and 1000\n" +
				"conntrack.min: Invalid value: -1: must be at least 0\n" +
				`bindAddress: Invalid value: "x": must be an IP address` + "\n" +
				`clusterCIDR: Invalid value: "y": must be a CIDR, such as 10.100.0.0/16 or fde4:8dba:82e1::/48`},
		"on periods that are wrong, in the section of the mode": {
			v1alpha1Header + "mode: nftables\nnftables: {syncPeriod: -1s}\n",
			`invalid configuration: nftables.syncPeriod: Invalid value: "-1s": must be greater than 0`},
	} {
		t.Run(name, func(t *testing.T) {
			c, _, err := config.Load([]byte(tc.file))
			require.EqualError(t, err, tc.want)
			assert.Nil(t, c)
		})
	}
}

func TestWarningsAreReturnedWithAnError(t *testing.T) {
	_, warnings, err := config.Load([]byte(v1alpha1Header + "oomScoreAdj: 2000\noomScore: 5\nportRange: 1-2\n"))
	require.EqualError(t, err, "invalid configuration: oomScoreAdj: Invalid value: 2000: must be between -1000 and 1000")
	assert.Equal(t, []string{
		"oomScore: unknown field; it is ignored",
		`portRange: "1-2" is dropped: no proxy has used it since mode userspace was removed`,
	}, texts(warnings))
}

func TestLoadTakesJSON(t *testing.T) {
	data, err := json.Marshal(map[string]any{"apiVersion": v1alpha2.APIVersion, "kind": v1alpha2.Kind,
		"hostnameOverride": "a"})
	require.NoError(t, err)
	c, warnings, err := config.Load(data)
	require.NoError(t, err)
	assert.Empty(t, warnings)
	assert.Equal(t, "a", c.HostnameOverride)
}

func TestWriteReportsErrors(t *testing.T) {
	full := errors.New("disk full")
	require.ErrorIs(t, config.Write(writerFunc(func([]byte) (int, error) { return 0, full }), v1alpha2.Default()), full)
	require.EqualError(t, config.Write(&bytes.Buffer{}, nil), "no configuration to write")
}

func TestWriteChangesNothingAndAddsDefaults(t *testing.T) {
	c := &v1alpha2.KubeProxyConfiguration{}
	var b bytes.Buffer
	require.NoError(t, config.Write(&b, c))
	assert.Equal(t, &v1alpha2.KubeProxyConfiguration{}, c)
	read, _, err := config.Load(b.Bytes())
	require.NoError(t, err)
	assert.Equal(t, v1alpha2.Default(), read)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func FuzzLoad(f *testing.F) {
	full, err := os.ReadFile("testdata/full-v1alpha1.yaml")
	require.NoError(f, err)
	f.Add(full)
	f.Add([]byte(v1alpha2Header + "configHardFail: false\nnodeIPOverride: [x, 10.0.0.1]\nminSyncPeriod: 0s\n"))
	f.Add([]byte(v1alpha1Header + "mode: a\nmode: ipvs\nx: [1]\n---\n{}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := config.Load(data)
		if err != nil {
			return
		}
		require.Empty(t, config.Validate(c), "what Load returns is valid")
		var written bytes.Buffer
		require.NoError(t, config.Write(&written, c))
		again, warnings, err := config.Load(written.Bytes())
		require.NoError(t, err)
		require.Empty(t, warnings)
		require.JSONEq(t, asJSON(t, c), asJSON(t, again))
	})
}
