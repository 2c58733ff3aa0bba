package helm

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const deploy = "../../cmd/kube-proxy/deploy"

// object is an object of Kubernetes, with the file of a ConfigMap's key config.yaml parsed.
type object map[string]any

func parse(t *testing.T, text []byte) object {
	t.Helper()
	var o object
	require.NoError(t, yaml.UnmarshalStrict(text, &o), "%s", text)
	if data, ok := o["data"].(map[string]any); ok {
		var file map[string]any
		require.NoError(t, yaml.UnmarshalStrict([]byte(data["config.yaml"].(string)), &file))
		data["config.yaml"] = file
	}
	return o
}

// built returns the objects that kubectl apply -k applies.
func built(t *testing.T, variants ...string) (list []object) {
	for _, variant := range variants {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(),
			filepath.Join(deploy, variant))
		require.NoError(t, err)
		for _, r := range resources.Resources() {
			text, err := r.AsYAML()
			require.NoError(t, err)
			list = append(list, parse(t, text))
		}
	}
	return list
}

// values are those of a values file, or of --set.
func values(t *testing.T, text string) map[string]any {
	v, err := chartutil.ReadValues([]byte(text))
	require.NoError(t, err)
	return v
}

// rendered returns the objects that helm install creates, and its notes.
func rendered(t *testing.T, c *chart.Chart, text string) (list []object, notes string, err error) {
	v, err := chartutil.ToRenderValues(c, values(t, text), chartutil.ReleaseOptions{Name: "any", Namespace: "kube-system"},
		nil)
	if err != nil {
		return nil, "", err
	}
	files, err := engine.Render(c, v)
	if err != nil {
		return nil, "", err
	}
	for name, file := range files {
		if filepath.Base(name) == "NOTES.txt" {
			notes = file
			continue
		}
		for _, document := range strings.Split(file, "\n---\n") {
			if strings.TrimSpace(document) != "" {
				list = append(list, parse(t, []byte(document)))
			}
		}
	}
	return list, notes, nil
}

func load(t *testing.T) *chart.Chart {
	c, err := loader.Load(filepath.Join(deploy, "helm"))
	require.NoError(t, err)
	return c
}

// variants are the values that make the objects of kustomize's variants.
var variants = map[string][]string{
	"{}":                       {"nftables"},
	"mode: ipvs":               {"ipvs"},
	"brain: {enabled: true}":   {"brain"},
	"windows: {enabled: true}": {"nftables", "windows"},
}

func TestTheChartHasTheObjectsOfKustomize(t *testing.T) {
	c := load(t)
	for text, folders := range variants {
		got, notes, err := rendered(t, c, text)
		require.NoError(t, err)
		require.NotEmpty(t, got, text)
		assert.ElementsMatch(t, built(t, folders...), got, text)
		label := "service-proxy=kube-proxy-lib\n"
		if folders[0] == "brain" {
			label = "service-proxy=kube-proxy-lib-node\n"
		}
		assert.Contains(t, notes, label, text)
	}
}

// Every value is used.
func TestValues(t *testing.T) {
	c := load(t)
	list, _, err := rendered(t, c, `
mode: iptables
image: registry.test/linux:1
apiServer: {host: "fd00::1", port: 443}
clusterCIDRs: [10.1.0.0/16, "fd00:1::/48"]
config: {iptables: {masqueradeAll: true}, mode: nftables}
resources: {limits: {memory: 1Gi}}
windows:
  enabled: true
  image: registry.test/windows:1
  networkName: overlay
  config: {winkernel: {enableDSR: true}}
  resources: {limits: {memory: 2Gi}}`)
	require.NoError(t, err)
	var text bytes.Buffer
	for _, o := range list {
		b, err := yaml.Marshal(o)
		require.NoError(t, err)
		text.Write(b)
	}
	for want, n := range map[string]int{"image: registry.test/linux:1": 2, "value: fd00::1": 2, `value: "443"`: 2,
		"- fd00:1::/48": 2, "masqueradeAll: true": 1, "mode: nftables": 1, "memory: 1Gi": 1,
		"image: registry.test/windows:1": 1, "networkName: overlay": 1, "enableDSR: true": 1, "memory: 2Gi": 1} {
		assert.Equal(t, n, strings.Count(text.String(), want), want)
	}
	list, _, err = rendered(t, c, "brain: {enabled: true, servers: ['192.0.2.1:1', '192.0.2.2:1'], tlsFolder: /tls}")
	require.NoError(t, err)
	b, err := yaml.Marshal(list)
	require.NoError(t, err)
	assert.Contains(t, string(b), "--server=192.0.2.1:1,192.0.2.2:1")
	assert.Contains(t, string(b), "path: /tls\n")
	assert.NotContains(t, string(b), "KUBERNETES_SERVICE_HOST")
}

func TestWrongValuesAreRefused(t *testing.T) {
	c := load(t)
	for text, want := range map[string]string{
		"mode: userspace":                                    "mode",
		"brains: {enabled: true}":                            "brains",
		"apiServer: {port: '443'}":                           "port",
		"clusterCIDRs: 10.1.0.0/16":                          "clusterCIDRs",
		"brain: {servers: []}":                               "servers",
		"brain: {tlsFolder: tls}":                            "tlsFolder",
		"windows: {networkName: 15}":                         "networkName",
		"{brain: {enabled: true}, windows: {enabled: true}}": "install the chart twice",
	} {
		_, _, err := rendered(t, c, text)
		assert.ErrorContains(t, err, want, text)
	}
}

// helm lint has nothing but the remark that there is no icon.
func TestLint(t *testing.T) {
	for text := range variants {
		linter := lint.All(filepath.Join(deploy, "helm"), values(t, text), "kube-system", true)
		for _, m := range linter.Messages {
			if m.Severity > support.InfoSev {
				t.Error(text, m)
			}
		}
		assert.LessOrEqual(t, linter.HighestSeverity, support.InfoSev)
	}
}

// The archive that the release script makes is the chart, with the version of the release.
func TestTheReleasedChart(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "../../.ci/release", "--chart", "v0.1.0").Output()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "chart.tgz")
	require.NoError(t, os.WriteFile(file, out, 0o600))
	released, err := loader.Load(file)
	require.NoError(t, err)
	assert.Equal(t, "0.1.0", released.Metadata.Version)
	assert.Equal(t, "v0.1.0", released.Metadata.AppVersion)
	want := load(t)
	assert.Equal(t, want.Values, released.Values)
	assert.Len(t, released.Templates, len(want.Templates))
	got, _, err := rendered(t, released, "mode: ipvs")
	require.NoError(t, err)
	assert.ElementsMatch(t, built(t, "ipvs"), got)
}
