package apiserver

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// pluginKubectl is a kubectl that finds the plugin and its completion, with a kubeconfig whose namespace is shop.
type pluginKubectl struct {
	t   *testing.T
	env []string
}

// run runs kubectl with arguments and an input, and returns what it prints, and its exit code.
func (k *pluginKubectl) run(input string, args ...string) (out, notes string, code int) {
	k.t.Helper()
	c := exec.CommandContext(k.t.Context(), cluster.Program(k.t, "kubectl"), args...)
	var stdout, stderr bytes.Buffer
	c.Env, c.Stdin, c.Stdout, c.Stderr = k.env, strings.NewReader(input), &stdout, &stderr
	_ = c.Run() // the exit code says it
	return stdout.String(), stderr.String(), c.ProcessState.ExitCode()
}

// ok runs kubectl, which has to succeed, and returns what it prints.
func (k *pluginKubectl) ok(args ...string) string {
	k.t.Helper()
	out, notes, code := k.run("", args...)
	require.Zero(k.t, code, "%v: %s", args, notes)
	return out
}

// newPluginKubectl builds the plugin, and returns a kubectl that has it, for a cluster.
func newPluginKubectl(t *testing.T, c *cluster.Cluster) *pluginKubectl {
	dir := cluster.Build(t, "kubectl-serviceproxy")
	completion, err := filepath.Abs("../../../cmd/kubectl-serviceproxy")
	require.NoError(t, err)
	program, err := filepath.Abs(cluster.Program(t, "kubectl"))
	require.NoError(t, err)
	path := strings.Join([]string{dir, completion, filepath.Dir(program), os.Getenv("PATH")}, string(os.PathListSeparator))
	k := &pluginKubectl{t, append(os.Environ(), "KUBECONFIG="+c.AdminKubeconfig(c.Port()), "HOME="+dir, "PATH="+path)}
	k.ok("config", "set-context", "--current", "--namespace=shop")
	return k
}

// fill creates a Service with endpoints on two nodes, a pod, and the DaemonSet of a kube-proxy in mode iptables.
func fill(t *testing.T, c *cluster.Cluster) {
	create, ctx := metav1.CreateOptions{}, t.Context()
	_, err := c.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, create)
	require.NoError(t, err)
	for name, ips := range map[string][2]string{"n1": {"192.0.2.1", "10.244.1.0/24"}, "n2": {"192.0.2.2",
		"10.244.2.0/24"}} {
		node := kube.Node(name).InternalIP(ips[0]).PodCIDR(ips[1]).Build()
		created, err := c.Client.CoreV1().Nodes().Create(ctx, node, create)
		require.NoError(t, err)
		created.Status = node.Status
		_, err = c.Client.CoreV1().Nodes().UpdateStatus(ctx, created, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	_, err = c.Client.CoreV1().Services("shop").Create(ctx, kube.Service("shop/web").ClusterIP("10.96.0.10").
		Port("https", 443).Build(), create)
	require.NoError(t, err)
	_, err = c.Client.DiscoveryV1().EndpointSlices("shop").Create(ctx, kube.EndpointSlice("shop/web").
		Port("https", 8443).Endpoint("10.244.1.5").OnNode("n1").Endpoint("10.244.2.5").OnNode("n2").Build(), create)
	require.NoError(t, err)
	spec := corev1.PodSpec{NodeName: "n2", Containers: []corev1.Container{{Name: "kube-proxy", Image: "kube-proxy",
		Command: []string{"kube-proxy", "--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16"}}}}
	pod, err := c.Client.CoreV1().Pods("shop").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "cart-0"},
		Spec: spec}, create)
	require.NoError(t, err)
	pod.Status.PodIP, pod.Status.PodIPs = "10.244.2.9", []corev1.PodIP{{IP: "10.244.2.9"}}
	_, err = c.Client.CoreV1().Pods("shop").UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	require.NoError(t, err)
	spec.NodeName = ""
	labels := map[string]string{"k8s-app": "kube-proxy"}
	require.Eventually(t, func() bool { // the API server creates this namespace
		_, err := c.Client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		return err == nil
	}, 5*time.Minute, 10*time.Millisecond)
	_, err = c.Client.AppsV1().DaemonSets(metav1.NamespaceSystem).Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}}}, create)
	require.NoError(t, err)
}

// The real kubectl runs the plugin's five commands against a real API server: for a user without rights, who is shown
// how to get them, and then with these rights and no others.
func TestThePluginOfKubectl(t *testing.T) {
	c := cluster.Start(t, cluster.Options{})
	fill(t, c)
	k := newPluginKubectl(t, c)

	out, notes, code := k.run("", "serviceproxy", "explain", "web", "--node", "n1", "--as", "jane")
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	const remedy = "serviceproxy rbac --user jane"
	require.Contains(t, notes, `User "jane" cannot list resource "services"`)
	require.Contains(t, notes, "kubectl "+remedy+" | kubectl apply -f -\n")
	_, notes, code = k.run(k.ok(strings.Fields(remedy)...), "apply", "-f", "-")
	require.Zero(t, code, notes)
	require.Eventually(t, func() bool { // the API server learns of them by a watch of its own
		_, notes, code = k.run("", "serviceproxy", "preflight", "--from", "daemonset", "--as", "jane")
		return code == 1
	}, 5*time.Minute, 100*time.Millisecond, "%s", notes)

	assert.Regexp(t, `10\.244\.1\.5:8443 .* ready \(node n1`,
		k.ok("serviceproxy", "explain", "web", "--node", "n1", "--as", "jane"))
	assert.Equal(t, k.ok("serviceproxy", "explain", "shop/web", "--node", "n1", "-n", "other"),
		k.ok("serviceproxy", "explain", "web", "--node", "n1", "--as", "jane"))
	answer := k.ok("serviceproxy", "flow", "pod cart-0 -> web:https", "--proxy", "daemonset", "--as", "jane")
	assert.True(t, strings.HasPrefix(answer, "local pod 10.244.2.9 -> 10.96.0.10:443/TCP\n  deliver\n"), answer)
	assert.Contains(t, answer, "10.244.2.9 passes for a local pod (S30)")
	state := k.ok("serviceproxy", "state", "--node", "n2", "-o", "jsonpath={.services[*].service.name.name}", "--as",
		"jane")
	assert.Contains(t, strings.Fields(state), "web")
	out, _, code = k.run("", "serviceproxy", "preflight", "--from", "daemonset", "--to", "nftables", "--as", "jane")
	assert.Equal(t, 1, code, "there are differences")
	assert.Contains(t, out, "Compared on n1, n2: ")
	_, _, code = k.run("", "serviceproxy", "preflight", "--from", "daemonset", "--to", "daemonset", "--same", "--as",
		"jane")
	assert.Zero(t, code, "there is none")

	names, _, _ := strings.Cut(k.ok("__complete", "serviceproxy", "explain", ""), "\n:")
	assert.Contains(t, strings.Split(names, "\n"), "web")
	assert.Contains(t, strings.Split(names, "\n"), "shop/")
	assert.Contains(t, k.ok("__complete", "serviceproxy", "state", "--node", ""), "n1\nn2\n")
}
