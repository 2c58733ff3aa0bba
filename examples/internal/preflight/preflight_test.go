package preflight

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testleak"
)

func TestMain(m *testing.M) { testleak.Main(m) }

// cluster has one service with an endpoint on node-1 and one on node-2. SPEC is more of its spec, OBJECTS are more
// objects.
const cluster = `
apiVersion: v1
kind: Node
metadata: {name: node-1}
spec: {podCIDRs: [10.244.1.0/24]}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
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
	file := filepath.Join(t.TempDir(), "config.yaml")
	require.NoError(t, os.WriteFile(file,
		[]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+text), 0o600))
	return file
}

func lines(t *testing.T, want int, args ...string) []string {
	t.Helper()
	var out bytes.Buffer
	n, err := run(t.Context(), append([]string{"--node-name", "node-1"}, args...), &out)
	require.NoError(t, err)
	assert.Equal(t, want, n, out.String())
	return strings.Split(strings.TrimSpace(out.String()), "\n")
}

func TestDifferences(t *testing.T) {
	nodePort := "nodePort: 30080"
	tests := map[string]struct {
		file     string
		from, to string
		more     []string
		want     []string
	}{
		"none": {with(t, "", "", "node-1"), "iptables", "nftables", nil, []string{"no differences for node-1"}},
		"none in the same mode": {with(t, nodePort, "type: NodePort", "node-1"), "iptables", "iptables", nil,
			[]string{"no differences for node-1"}},
		"node ports on 127.0.0.1": {with(t, nodePort, "type: NodePort", "node-1"), "iptables", "nftables", nil, []string{
			"shop/web:http/TCP at 127.0.0.1:30080, from the node: delivered to 2 endpoints, with an address of the node " +
				"as the source; then not served (S36)"}},
		"node ports on other addresses": {with(t, nodePort, "type: NodePort", "node-1"), "ipvs", "nftables",
			[]string{"--host-addresses", "192.0.2.1, 198.51.100.1"}, []string{
				"shop/web:http/TCP at 198.51.100.1:30080, from the node and a pod of this node and a pod of another node " +
					"and outside: delivered to 2 endpoints, with an address of the node as the source; then not served (S35)"}},
		"masquerading": {with(t, "", "", "node-1"), "nftables",
			configFile(t, "mode: nftables\nnftables: {masqueradeAll: true}\n"), nil, []string{
				"shop/web:http/TCP at 10.96.0.10:80, from the node and outside: delivered to 2 endpoints, with the client's " +
					"address as the source; then delivered to 2 endpoints, with an address of the node as the source (S28)",
				"shop/web:http/TCP at 10.96.0.10:80, from a pod of this node and a pod of another node: delivered to 2 " +
					"endpoints, with an address of the node for 1 of them as the source; then delivered to 2 endpoints, with " +
					"an address of the node as the source (S28)"}},
		"a Local service without an endpoint here, from ipvs": {
			with(t, "nodePort: 30080", "type: NodePort\n  externalTrafficPolicy: Local", "node-3"), "ipvs", "ipvs", nil,
			[]string{"shop/web:http/TCP at 192.0.2.1:30080, from a pod of this node and a pod of another node and outside: " +
				"delivered to endpoints of other nodes; then dropped (S58)"}},
		"contested": {with(t, "", "externalIPs: [203.0.113.1]", "node-1", `
apiVersion: v1
kind: Service
metadata: {namespace: other, name: thief, creationTimestamp: "2026-02-02T00:00:00Z"}
spec:
  clusterIPs: [10.96.0.11]
  clusterIP: 10.96.0.11
  ipFamilies: [IPv4]
  ports: [{name: http, port: 80}]
  externalIPs: [203.0.113.1]`), "nftables", "nftables", nil, []string{
			"other/thief:http/TCP: whoever came last is served; then not everything is served: 203.0.113.1:80/TCP " +
				"belongs to shop/web:http/TCP (S59)"}},
		"malformed": {with(t, "", "externalIPs: [nonsense]", "node-1"), "nftables", "nftables", nil, []string{
			`Service shop/web: may be used as it is; then ignored: externalIPs: "nonsense" is not an IP address ` +
				`(S3 to S5)`}},
		"not compared with kube-proxy": {with(t, "", "externalIPs: [nonsense]", "node-1"), "nftables", "nftables",
			[]string{"--same"}, []string{"no differences for node-1"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			want := len(test.want)
			if strings.HasPrefix(test.want[0], "no differences") {
				want = 0
			}
			assert.Equal(t, test.want, lines(t, want, append([]string{"--file", test.file, "--from", test.from, "--to",
				test.to}, test.more...)...))
		})
	}
}

func TestJSONIsForPipelines(t *testing.T) {
	var out bytes.Buffer
	file := with(t, "nodePort: 30080", "type: NodePort", "node-1")
	n, err := run(t.Context(), []string{"--node-name", "node-1", "--file", file, "-o", "json"}, &out)
	require.NoError(t, err)
	assert.Equal(t, 1, n)
	var list []difference
	require.NoError(t, json.Unmarshal(out.Bytes(), &list))
	require.Len(t, list, 1)
	assert.Equal(t, "S36", list[0].Rule)
	out.Reset()
	_, err = run(t.Context(), []string{"--node-name", "node-1", "--file", file, "--to", "iptables", "-o", "json"}, &out)
	require.NoError(t, err)
	assert.JSONEq(t, "[]", out.String())
}

// The configuration of kubeadm's DaemonSet is read from the cluster.
func TestTheConfigMapIsRead(t *testing.T) {
	kubeconfig := serving(t, map[string]any{"/api/v1/namespaces/kube-system/configmaps/kube-proxy": corev1.ConfigMap{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, Data: map[string]string{
			"config.conf": "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: \"\"\n"}}})
	c, err := configuration(t.Context(), "configmap", kubeconfig)
	require.NoError(t, err)
	assert.EqualValues(t, "iptables", c.Mode, "kube-proxy's default")
	_, err = run(t.Context(), []string{"--node-name", "node-1", "--kubeconfig", kubeconfig, "--timeout", "1ms"},
		&bytes.Buffer{})
	require.EqualError(t, err, "no complete list of the cluster's objects after 1ms: is the API server reachable?")
}

func TestWrongFlagsAreNamed(t *testing.T) {
	file := with(t, "", "", "node-1")
	for want, args := range map[string][]string{
		"one of --node-name and --all-nodes is":   {"--file", file},
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

// The arguments of the running DaemonSet are read, with the file that they name from the ConfigMap that it mounts.
func TestTheDaemonSetIsRead(t *testing.T) {
	const config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n"
	for name, test := range map[string]struct {
		command, args []string
		volumes       []corev1.Volume
		mode          string
		err           string
	}{
		"as kubeadm has it": {[]string{"/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf",
			"--hostname-override=$(NODE_NAME)"}, nil, mountedAs("config.conf"), "ipvs", ""},
		"another key": {[]string{"kube-proxy"}, []string{"--config=/var/lib/kube-proxy/other"}, mountedAs("other"), "ipvs", ""},
		"flags":       {[]string{"kube-proxy"}, []string{"--proxy-mode=nftables", "--v=2"}, nil, "nftables", ""},
		"a shell":     {[]string{"/bin/sh", "-c"}, []string{"exec kube-proxy --proxy-mode=ipvs 1>>/log 2>&1"}, nil, "ipvs", ""},
		"no mode":     {[]string{"kube-proxy"}, nil, nil, "iptables", ""},
		"a file of the node": {[]string{"kube-proxy", "--config=/etc/proxy.yaml"}, nil, nil, "",
			"DaemonSet kube-system/kube-proxy: --config=/etc/proxy.yaml: it is not in a ConfigMap: copy it from a node, and " +
				"give its path to --from"},
		"a flag that nobody knows": {[]string{"kube-proxy", "--magic"}, nil, nil, "", "unknown flag: --magic"},
	} {
		t.Run(name, func(t *testing.T) {
			kubeconfig := serving(t, map[string]any{
				"/api/v1/namespaces/kube-system/configmaps/kube-proxy": corev1.ConfigMap{
					TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
					Data:     map[string]string{"config.conf": config}},
				"/apis/apps/v1/namespaces/kube-system/daemonsets/kube-proxy": appsv1.DaemonSet{
					TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
					Spec: appsv1.DaemonSetSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Volumes: test.volumes,
						Containers: []corev1.Container{{Command: test.command, Args: test.args, VolumeMounts: []corev1.VolumeMount{
							{Name: "kube-proxy", MountPath: "/var/lib/kube-proxy"}}}}}}},
				}})
			c, err := configuration(t.Context(), "daemonset", kubeconfig)
			if test.err != "" {
				require.ErrorContains(t, err, test.err)
				return
			}
			require.NoError(t, err)
			assert.EqualValues(t, test.mode, c.Mode)
		})
	}
	_, err := configuration(t.Context(), "daemonset", "")
	require.EqualError(t, err, "daemonset needs --kubeconfig")
}

// mountedAs returns the volume of kubeadm's ConfigMap, whose file has a name.
func mountedAs(path string) []corev1.Volume {
	return []corev1.Volume{{Name: "kube-proxy", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
		LocalObjectReference: corev1.LocalObjectReference{Name: "kube-proxy"},
		Items:                []corev1.KeyToPath{{Key: "config.conf", Path: path}}}}}}
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
