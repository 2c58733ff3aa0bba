package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestOneVersionOfKubernetesIsTheReference: the first version in testing/integration/kubernetes-versions is the one
// that the differential tests compile against, and the one that the pages call the reference.
func TestOneVersionOfKubernetesIsTheReference(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return strings.ReplaceAll(string(text), "\n", " ")
	}
	lines, err := os.ReadFile("../testing/integration/kubernetes-versions")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^v\S+`).FindString(string(lines))
	require.NotEmpty(t, version)
	minor := regexp.MustCompile(`^v(\d+\.\d+)`).FindStringSubmatch(version)[1]

	goMod := read("../testing/integration/go.mod")
	parts := regexp.MustCompile(`\sk8s\.io/\S+ (?:=> k8s\.io/\S+ )?(v[01]\.\d+\.\d+\S*)(?: // indirect)?`).
		FindAllStringSubmatch(goMod, -1)
	n := 0
	for _, part := range parts {
		if part[1] == "v0.0.0" || strings.Contains(part[1], "-20") {
			continue // a replaced one, and a module with versions of its own
		}
		n++
		assert.Contains(t, []string{version, "v0" + version[2:]}, part[1],
			"testing/integration/go.mod, %s: run testing/integration/use", part[0])
	}
	assert.Greater(t, n, 30)
	for path, sentence := range map[string]string{
		"departures.md":             `the tests of Kubernetes' own kube-proxy, version (\S+?)\. This`,
		"semantics.md":              `behaviour of Kubernetes' own kube-proxy, version (\S+?),`,
		"../README.md":              `The behaviour is that of Kubernetes (\S+)'s kube-proxy`,
		"../dropin/config/gates.go": `kubeProxyGates returns the feature gates of kube-proxy (\S+),`,
		"configuration.md":          "returns the gates of kube-proxy (\\S+),",
	} {
		found := regexp.MustCompile(sentence).FindStringSubmatch(read(path))
		if assert.NotNil(t, found, "%s: %s", path, sentence) {
			assert.Contains(t, []string{version[1:], minor}, found[1], path)
		}
	}
}

// README names the versions of client-go, and what the pre-release among them needs.
func TestTheVersionsOfClientGoAreInREADME(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	text := strings.Join(strings.Fields(string(readme)), " ")
	versions, err := os.ReadFile("../.ci/client-go-versions")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^v(0\.\d+)\.\d+(-\S+)?`).FindAllStringSubmatch(string(versions), -1)
	require.NotEmpty(t, found)
	row := regexp.MustCompile(`\| 0\.1, main \|[^|]*\|([^|]*)\|`).FindStringSubmatch(text)
	require.NotNil(t, row)
	for _, v := range found {
		if v[2] != "" {
			assert.Contains(t, text, "a pre-release of "+v[1]+", which needs Go")
			continue
		}
		assert.Contains(t, row[1], v[1])
	}
}
