package judge

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// casesOfEachKind are cluster IPs, addresses of the status and node ports, health check node ports, a restart, changes
// of endpoints, an address that moves between Services, and one that a real API server does not allow.
const casesOfEachKind = "^(a cluster IP leads|external addresses lead|external traffic policy Local keeps|" +
	"connections that stand survive a restart|the first endpoint ends the refusal|addresses move between|" +
	"a node port and an external IP of the node's address have one owner)"

// A real API server and the one in the process lead to the same verdicts.
func TestARealAPIServer(t *testing.T) {
	need.Root(t)
	need.Program(t, "nft")
	folder := cluster.Build(t, "judge", "kube-proxy")
	c := cluster.Start(t, cluster.Options{})
	t.Setenv("KPL_TIMEOUT_FACTOR", "5") // the machine may be busy
	command := func(report string, args ...string) *exec.Cmd {
		return exec.Command(filepath.Join(folder, "judge"), append([]string{"--report", report, "--start-timeout", "5m",
			"--lanes", "1", "--run", casesOfEachKind, "-v", "--proxy", filepath.Join(folder, "kube-proxy") +
				" --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode nftables --conntrack-max-per-core 0 {flags}"},
			args...)...)
	}
	toReal := []string{"--api-server", c.AdminKubeconfig(c.Port())}
	t.Run("an interrupted run leaves nothing behind", func(t *testing.T) {
		judge := command(t.TempDir(), toReal...)
		out, err := judge.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, judge.Start())
		lines := bufio.NewScanner(out)
		for lines.Scan() && !strings.Contains(lines.Text(), "the program is ready") {
		}
		require.NoError(t, judge.Process.Signal(os.Interrupt))
		for lines.Scan() {
		}
		err = judge.Wait()
		assert.Equal(t, 2, judge.ProcessState.ExitCode(), "%v", err)
		assertEmpty(t, c)
	})
	waitInProcess, waitReal := verdicts(t, command), verdicts(t, command, toReal...)
	inProcess, real := waitInProcess(), waitReal()
	for name, verdict := range inProcess {
		if strings.HasPrefix(name, "a node port and an external IP") {
			verdict = report.NotRun
		}
		assert.Equal(t, verdict, real[name], name)
	}
	assert.Equal(t, 1, count(real, report.NotRun))
	assert.Equal(t, 6, count(real, report.Passed), "%v", real)
	assertEmpty(t, c)
}

// verdicts starts a judge, and returns what waits for it and returns the verdict of each case.
func verdicts(t *testing.T, command func(string, ...string) *exec.Cmd,
	args ...string) func() map[string]report.Verdict {
	folder := t.TempDir()
	judge := command(folder, args...)
	var out bytes.Buffer
	judge.Stdout, judge.Stderr = &out, &out
	require.NoError(t, judge.Start())
	t.Cleanup(func() { _ = judge.Process.Kill() }) // if the test ends early
	return func() map[string]report.Verdict {
		require.NoError(t, judge.Wait(), "%s", out.String())
		text, err := os.ReadFile(filepath.Join(folder, "report.yaml"))
		require.NoError(t, err)
		r, err := report.Read(text)
		require.NoError(t, err)
		list := map[string]report.Verdict{}
		for _, result := range r.Results {
			switch {
			case result.Why == "it was not selected":
				continue
			case result.Verdict == report.NotRun:
				assert.Contains(t, result.Why, "the API server refuses Service default/")
			case result.Verdict == report.Slow: // the machine was busy
				result.Verdict = report.Passed
			}
			list[result.Case] = result.Verdict
		}
		return list
	}
}

func count(list map[string]report.Verdict, v report.Verdict) (n int) {
	for _, verdict := range list {
		if verdict == v {
			n++
		}
	}
	return n
}

// assertEmpty checks that a cluster has no objects of a judge.
func assertEmpty(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	all := metav1.ListOptions{}
	services, err := c.Client.CoreV1().Services("").List(t.Context(), all)
	require.NoError(t, err)
	assert.Len(t, services.Items, 1)
	endpoints, err := c.Client.DiscoveryV1().EndpointSlices("").List(t.Context(), all)
	require.NoError(t, err)
	assert.Empty(t, endpoints.Items)
	nodes, err := c.Client.CoreV1().Nodes().List(t.Context(), all)
	require.NoError(t, err)
	assert.Empty(t, nodes.Items)
	cidrs, err := c.Client.NetworkingV1().ServiceCIDRs().List(t.Context(), all)
	require.NoError(t, err)
	assert.Len(t, cidrs.Items, 1)
	leases, err := c.Client.CoordinationV1().Leases("default").List(t.Context(), all)
	require.NoError(t, err)
	assert.Empty(t, leases.Items)
}
