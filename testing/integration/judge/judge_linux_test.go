package judge

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// someCases are a part of the core: one of each kind. The whole takes two minutes in each mode.
const someCases = "^(a cluster IP leads|external addresses lead|a service without endpoints|endpoints come and go|" +
	"terminating endpoints that serve|the cluster set respects topology|external traffic policy Local keeps|" +
	"internal traffic policy Local keeps|a pod that reaches itself|source ranges guard|" +
	"a client stays with its endpoint$|UDP flows move when their endpoint goes|connections that stand survive a restart)"

// Upstream's kube-proxy passes what every proxy has to pass.
func TestKubeProxy(t *testing.T) {
	need.Root(t)
	kubeProxy := cluster.Program(t, "kube-proxy")
	program := filepath.Join(cluster.Build(t, "judge"), "judge")
	for _, tc := range []struct {
		mode     string
		programs []string
	}{
		{"nftables", []string{"nft"}},
		{"iptables", []string{"iptables", "ip6tables", "iptables-restore", "ip6tables-restore"}},
	} {
		t.Run(tc.mode, func(t *testing.T) {
			for _, name := range tc.programs {
				need.Program(t, name)
			}
			folder := t.TempDir()
			out, err := exec.Command(program, "--report", folder, "-v", "--run", someCases, "--proxy", kubeProxy+
				" --kubeconfig {kubeconfig} --hostname-override {node} --proxy-mode "+tc.mode+
				" --conntrack-max-per-core 0 --oom-score-adj 0 {flags}").CombinedOutput()
			require.NoError(t, err, "%s", out)
			text, err := os.ReadFile(filepath.Join(folder, "report.yaml"))
			require.NoError(t, err)
			r, err := report.Read(text)
			require.NoError(t, err)
			core := r.Counts(report.Core)
			assert.Equal(t, 13, core.Passed+core.Slow, "%s", out)
		})
	}
}
