package apiserver

import (
	"bytes"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

const slices = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a, labels: {kubernetes.io/service-name: web, app: web}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints: [{addresses: [%s], conditions: {ready: true}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: b, labels: {kubernetes.io/service-name: web, app: web}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints: [{addresses: [10.244.1.7], conditions: {ready: true}}]
`

// kubectl prints the same, and exits with the same status, against this server as against a real one.
func TestKubectl(t *testing.T) {
	upstream := cluster.Start(t, cluster.Options{})
	s, err := apiserver.New()
	require.NoError(t, err)
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	ours := write("kubeconfig", apiserver.Kubeconfig(h.URL))
	first, second := write("first.yaml", fmt.Sprintf(slices, "10.244.1.5")), write("second.yaml", fmt.Sprintf(slices,
		"10.244.1.6"))
	unknown := write("unknown.yaml", fmt.Sprintf(slices, "10.244.1.5], colour: [red"))
	service := write("service.yaml", `apiVersion: v1
kind: Service
metadata: {name: web, labels: {app: web}}
spec: {ports: [{name: http, port: 80, protocol: TCP, targetPort: 80}]}
`)
	const address = "-o=jsonpath={.endpoints[*].addresses[*]} {.metadata.labels}"
	for _, args := range [][]string{
		{"create", "-f", first, "--dry-run=server"},
		{"get", "endpointslices", "-o", "name"},
		{"apply", "-f", unknown},
		{"apply", "-f", unknown, "--validate=ignore", "--dry-run=server"},
		{"create", "-f", first},
		{"create", "-f", first},
		{"get", "endpointslices", "-o", "name"},
		{"get", "endpointslices", "-l", "app=web", "-o", "name", "--field-selector", "metadata.name=b"},
		{"get", "endpointslice", "a", address},
		{"apply", "-f", second, "--dry-run=server"},
		{"get", "endpointslice", "a", address},
		{"apply", "-f", second},
		{"apply", "-f", second},
		{"get", "endpointslice", "a", address},
		{"apply", "-f", first, "--server-side"},
		{"apply", "-f", first, "--server-side", "--force-conflicts"},
		{"apply", "-f", first, "--server-side", "--force-conflicts", "--dry-run=server"},
		{"get", "endpointslice", "a", address},
		{"replace", "-f", second, "--dry-run=server"},
		{"replace", "-f", second},
		{"get", "endpointslice", "a", address},
		{"patch", "endpointslice", "a", "-p", `{"metadata":{"labels":{"by":"strategic"}}}`, "--dry-run=server"},
		{"patch", "endpointslice", "a", "-p", `{"metadata":{"labels":{"by":"strategic"}}}`},
		{"patch", "endpointslice", "a", "-p", `{"metadata":{"labels":{"by":"strategic"}}}`},
		{"patch", "endpointslice", "a", "--type=merge", "-p", `{"metadata":{"labels":{"by":"merge"}}}`},
		{"patch", "endpointslice", "a", "--type=json", "-p",
			`[{"op":"replace","path":"/metadata/labels/by","value":"json"}]`},
		{"patch", "endpointslice", "a", "--type=json", "-p",
			`[{"op":"replace","path":"/metadata/labels/none","value":"x"}]`},
		{"patch", "endpointslice", "a", "--type=json", "-p", `[{"op":"test","path":"/metadata/name","value":"b"}]`},
		{"label", "endpointslice", "a", "more=yes"},
		{"get", "endpointslice", "a", address},
		{"wait", "endpointslice/a", "--for=jsonpath={.metadata.labels.by}=json", "--timeout=30s"},
		{"delete", "endpointslice", "a", "--dry-run=server"},
		{"get", "endpointslices", "-o", "name"},
		{"delete", "endpointslice", "a"},
		{"delete", "endpointslice", "a"},
		{"delete", "endpointslice", "a", "--ignore-not-found"},
		{"wait", "endpointslice/a", "--for=delete", "--timeout=30s"},
		{"delete", "-f", second, "--ignore-not-found"},
		{"get", "svc", "none", "-o", "name"},
		{"create", "-f", service},
		{"get", "all", "-l", "app=web", "-o", "name"},
		{"get", "all", "-l", "app=web", "--no-headers", "-o=custom-columns=:metadata.name,:spec.ports[*].port"},
		{"patch", "svc", "web", "-p", `{"spec":{"ports":[{"port":81,"name":"other"}]}}`},
		{"patch", "svc", "web", "--type=merge", "-p", `{"metadata":{"labels":{"more":null,"by":"merge"}}}`},
		{"get", "svc", "web", "-o=jsonpath={.spec.ports[*].port} {.metadata.labels}"},
		{"label", "svc", "web", "by-"},
		{"delete", "svc", "web"},
		{"get", "csr", "-o", "name"},
		{"get", "vac", "-o", "name"},
		{"get", "nonsense"},
	} {
		assert.Equal(t, kubectl(t, upstream.AdminKubeconfig(upstream.Port()), args), kubectl(t, ours, args), "%q", args)
	}
}

// kubectl returns what kubectl prints, without what differs from one run to the next, and its exit status.
func kubectl(t *testing.T, kubeconfig string, args []string) string {
	c := exec.CommandContext(t.Context(), cluster.Program(t, "kubectl"), args...)
	c.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+filepath.Dir(kubeconfig)) // its cache
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	status := (*exec.ExitError)(nil)
	if err != nil && !errors.As(err, &status) {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`uid: \S+|kubeconfig\S*`).ReplaceAllString(out.String(), "...")
	return fmt.Sprintf("%s%d", text, c.ProcessState.ExitCode())
}
