package differential

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every metric of kube-proxy is one of ours, or docs/departures.md says that it is not. The names are read from its
// source: a registry of Prometheus lists only metrics that have a value.
func TestEveryMetricOfKubeProxyIsAccountedFor(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "k8s.io/kubernetes/pkg/proxy/metrics").Output()
	require.NoError(t, err)
	source, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "metrics.go"))
	require.NoError(t, err)
	var docs string
	for _, name := range []string{"operate/metrics.md", "departures.md"} {
		text, err := os.ReadFile(filepath.Join("../../../docs", name))
		require.NoError(t, err)
		docs += string(text)
	}
	names := regexp.MustCompile(`(?m)^\s*(?:Name:\s*"(\w+)"|"kubeproxy_(\w+)")`).FindAllStringSubmatch(string(source), -1)
	require.Greater(t, len(names), 25)
	for _, found := range names {
		name := "`kubeproxy_" + found[1] + found[2] + "`"
		assert.Contains(t, docs, name)
	}
}
