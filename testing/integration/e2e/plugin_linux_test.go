package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kubectlPlugin runs a command of the plugin of kubectl, for a user, and returns its output and its exit code.
func (r *recipe) kubectlPlugin(args ...string) (out string, code int) {
	cmd := exec.CommandContext(r.t.Context(), "sh", append([]string{"-c", `exec kubectl serviceproxy "$@"`, "sh"},
		args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.c.Kubeconfig(),
		"PATH="+filepath.Dir(r.kubectl)+":"+r.programs+":"+os.Getenv("PATH"))
	text, _ := cmd.CombinedOutput() // the exit code says it
	return string(text), cmd.ProcessState.ExitCode()
}

// thePluginAnswers runs the five commands of the plugin about the Service web of the smoke test, whose pod is on n1,
// for a user without rights, who gets those that rbac prints. What it says is compared with the pods, with the rules on
// the nodes, and with what a running proxy says.
func (r *recipe) thePluginAnswers() {
	ok := func(args ...string) string {
		r.t.Helper()
		out, code := r.kubectlPlugin(append(args, "--as", "jane")...)
		require.Zero(r.t, code, "%v: %s", args, out)
		return out
	}
	service, err := r.client.CoreV1().Services("default").Get(r.t.Context(), "web", metav1.GetOptions{})
	require.NoError(r.t, err)
	addresses := map[string]string{}
	for _, name := range []string{"web", "client"} {
		pod, err := r.client.CoreV1().Pods("default").Get(r.t.Context(), name, metav1.GetOptions{})
		require.NoError(r.t, err)
		require.NotEmpty(r.t, pod.Status.PodIP, name)
		addresses[name] = pod.Status.PodIP
	}
	web := addresses["web"] + ":80"

	explain := []string{"explain", "web", "--node", "n2", "--proxy", smokeFlags}
	out, code := r.kubectlPlugin(append(explain, "--as", "jane")...)
	assert.Equal(r.t, 1, code)
	assert.Contains(r.t, out, "kubectl serviceproxy rbac --user jane | kubectl apply -f -\n")
	rights, code := r.kubectlPlugin("rbac", "--user", "jane")
	require.Zero(r.t, code, rights)
	file := filepath.Join(r.dir, "rights.yaml")
	require.NoError(r.t, os.WriteFile(file, []byte(rights), 0o644))
	r.shell("kubectl apply -f " + file)
	require.Eventually(r.t, func() bool { // the API server learns of them by a watch of its own
		out, code = r.kubectlPlugin(append(explain, "--as", "jane")...)
		return code == 0
	}, waitTimeout, 100*time.Millisecond, "jane may ask")
	assert.Regexp(r.t, regexp.QuoteMeta(web)+` +Cluster +ready \(node n1, slice web-`, out)
	assert.Contains(r.t, r.on("n2", "nft", "list", "table", "ip", "kube-proxy-lib"), addresses["web"])
	assert.Equal(r.t, r.on("n2", filepath.Join(r.programs, "kubectl-serviceproxy"), "explain", "default/web", "--url",
		"http://127.0.0.1:10249/page/"), out, "the proxy that runs on the node says the same")

	flow := ok("flow", "pod client -> web:80", "--proxy", smokeFlags)
	assert.Contains(r.t, flow, "local pod "+addresses["client"]+" -> "+service.Spec.ClusterIP+":80/TCP\n  deliver\n    "+
		web+"  keeps the source address  pod default/web on node n1\n", "as it did")
	flow = ok("flow", "outside 172.31.0.1 -> web:80", "--node", "n2", "--proxy", smokeFlags)
	assert.Contains(r.t, flow, "  deliver\n    "+web+"  masqueraded  pod default/web on node n1\n")
	assert.NotContains(r.t, ok("flow", "pod client -> web:81", "--proxy", smokeFlags), "deliver")

	state := func(query string) []string {
		return strings.Fields(ok("state", "--node", "n1", "--proxy", smokeFlags, "-o", "jsonpath="+query))
	}
	assert.ElementsMatch(r.t, []string{"kubernetes", "web", "kube-dns"}, state("{.services[*].service.name.name}"))
	assert.Equal(r.t, []string{web}, state(`{.services[?(@.service.name.name=="web")].endpoints[*].target}`))

	out = ok("preflight", "--same", "--from", smokeFlags, "--to", smokeFlags)
	assert.Contains(r.t, out, "no differences\nCompared on n1, n2: 3 Services")
	out, code = r.kubectlPlugin("preflight", "--same", "--from", smokeFlags, "--to", "nftables", "--as", "jane")
	assert.Equal(r.t, 1, code, "without --cluster-cidr there are differences")
	assert.Contains(r.t, out, "default/web")
}
