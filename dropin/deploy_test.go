package dropin

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/kube-proxy-lib/dropin/config"
	"sigs.k8s.io/kube-proxy-lib/dropin/config/v1alpha2"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

const deploy = "../cmd/kube-proxy/deploy"

// kustomization has the fields that the kustomizations of deploy use.
type kustomization struct {
	APIVersion, Kind string
	Resources        []string
	Patches          []struct{ Patch string }
}

// deployed returns the objects of a folder of deploy, with those that it patches in their new form.
func deployed(t *testing.T, dir string) (list []unstructured.Unstructured) {
	data, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	require.NoError(t, err)
	var k kustomization
	require.NoError(t, yaml.UnmarshalStrict(data, &k))
	assert.Equal(t, "kustomize.config.k8s.io/v1beta1 Kustomization", k.APIVersion+" "+k.Kind)
	for _, name := range k.Resources {
		path := filepath.Join(dir, name)
		if filepath.Ext(name) == "" {
			list = append(list, deployed(t, path)...)
			continue
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		list = append(list, objectsOf(t, data)...)
	}
	for _, patch := range k.Patches {
		for _, changed := range objectsOf(t, []byte(patch.Patch)) {
			n := 0
			for i := range list {
				if list[i].GetKind() == changed.GetKind() && list[i].GetName() == changed.GetName() {
					require.Equal(t, "ConfigMap", changed.GetKind(), "this test can replace data alone")
					list[i], n = changed, n+1
				}
			}
			assert.Equal(t, 1, n, "objects that the patch of %s is about", changed.GetName())
		}
	}
	return list
}

func objectsOf(t *testing.T, data []byte) (list []unstructured.Unstructured) {
	for r := yamlreader.NewDocumentDecoder(io.NopCloser(bytes.NewReader(data))); ; {
		doc := make([]byte, len(data))
		n, err := r.Read(doc)
		if errors.Is(err, io.EOF) {
			return list
		}
		require.NoError(t, err)
		var object unstructured.Unstructured
		require.NoError(t, yaml.UnmarshalStrict(doc[:n], &object.Object))
		list = append(list, object)
	}
}

// trimmed removes white space around the configuration files.
func trimmed(list []unstructured.Unstructured) []unstructured.Unstructured {
	for _, object := range list {
		if text, ok, _ := unstructured.NestedString(object.Object, "data", "config.yaml"); ok {
			_ = unstructured.SetNestedField(object.Object, strings.TrimSpace(text), "data", "config.yaml")
		}
	}
	return list
}

// Applying a manifest by accident changes nothing: no object has the name of one of kubeadm's, no pods count as those
// of another set, and no node gets the program before it is labelled.
func TestApplyingAManifestLeavesTheClustersProxyAlone(t *testing.T) {
	seen := map[string]string{} // who has a name
	for _, variant := range []string{"nftables", "windows", "brain"} {
		for _, object := range deployed(t, filepath.Join(deploy, variant)) {
			name := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
			assert.Regexp(t, `^kube-proxy-lib`, object.GetName(), name)
			assert.Empty(t, seen[name], "%s would replace that of another variant", name)
			seen[name] = variant
			if object.GetKind() != "DaemonSet" {
				continue
			}
			var d appsv1.DaemonSet
			data, err := object.MarshalJSON()
			require.NoError(t, err)
			require.NoError(t, yaml.Unmarshal(data, &d))
			assert.Equal(t, d.Name, d.Spec.Selector.MatchLabels["k8s-app"])
			assert.Regexp(t, `^kube-proxy-lib`, d.Spec.Template.Spec.NodeSelector["service-proxy"], name)
		}
	}
}

// The kustomizations contain the objects of the manifests, and their configuration is valid.
func TestKustomizations(t *testing.T) {
	kubectl, found := need.Find("kubectl")
	for variant, mode := range map[string]v1alpha2.ProxyMode{"nftables": "nftables", "ipvs": "ipvs", "brain": "nftables",
		"windows": "kernelspace"} {
		t.Run(variant, func(t *testing.T) {
			dir := filepath.Join(deploy, variant)
			want := deployed(t, dir)
			configs := 0
			for _, object := range want {
				if object.GetKind() != "ConfigMap" {
					continue
				}
				configs++
				text, _, err := unstructured.NestedString(object.Object, "data", "config.yaml")
				require.NoError(t, err)
				var c v1alpha2.KubeProxyConfiguration
				require.NoError(t, yaml.UnmarshalStrict([]byte(text), &c))
				assert.Equal(t, mode, c.Mode)
				if (mode == "kernelspace") == (nameOfOwnMode() == "kernelspace") { // elsewhere there is no such mode
					_, warnings, err := config.Load([]byte(text))
					require.NoError(t, err)
					assert.Empty(t, warnings)
				}
			}
			assert.Equal(t, 1, configs)
			if !found {
				return // Debian's is too old
			}
			out, err := exec.CommandContext(t.Context(), kubectl, "kustomize", dir).Output()
			require.NoError(t, err)
			assert.ElementsMatch(t, trimmed(want), trimmed(objectsOf(t, out)))
		})
	}
}
