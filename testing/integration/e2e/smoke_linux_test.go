package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// TestMain runs the cluster's processes, which are started from this program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == trafficCommand {
		makeTraffic(os.Stdout, os.Args[2:])
	}
	if child, err := e2e.Child(os.Args); child {
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// waitTimeout is how long to wait for what is expected.
const waitTimeout = 5 * time.Minute

var (
	webImage    = imageutils.GetE2EImage(imageutils.Nginx)
	clientImage = imageutils.GetE2EImage(imageutils.BusyBox)
)

// A pod reaches another one by the name of its Service, which it asks CoreDNS for: kubelet and containerd run both, and
// cmd/kube-proxy serves the Service, that of CoreDNS, and that of the API server, which CoreDNS needs. The command
// cluster runs programs on the nodes, and the plugin of kubectl says what the proxies do. At the end a node reboots.
//
// It runs where KPL_CLUSTER=1 asks for it: what it needs takes long to build.
func TestAPodReachesAServiceByItsName(t *testing.T) {
	programs := needCluster(t)
	folder := cluster.Build(t, "kube-proxy", "kubectl-serviceproxy")
	options := e2e.Options{Dir: filepath.Join(t.TempDir(), "cluster"), Nodes: 2, Programs: programs}
	r := newRecipe(t, options, "", folder)
	c := r.c
	r.hasItsWeight()
	assert.Equal(t, "n1 n2", r.shell("kubectl get nodes --output=jsonpath='{.items[*].metadata.name}'"))

	require.NoError(t, c.Proxy(t.Context(), filepath.Join(folder, "kube-proxy")+" --kubeconfig={kubeconfig} "+
		"--hostname-override={node} --page --conntrack-max-per-core=0 "+smokeFlags, ""))
	pods := r.client.CoreV1().Pods("default")
	create := func(p *corev1.Pod) {
		_, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "web", Image: webImage}}}})
	_, err := r.client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	create(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "client"}, Spec: corev1.PodSpec{NodeName: "n2",
		RestartPolicy: corev1.RestartPolicyOnFailure, Containers: []corev1.Container{{Name: "client", Image: clientImage,
			Command: []string{"curl", "--silent", "--show-error", "--fail", "--retry", "1000", "--retry-delay", "1",
				"--retry-all-errors", "--retry-max-time", fmt.Sprint(int(waitTimeout.Seconds())), "http://web.default"}}}}})

	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	w, err := pods.Watch(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", "client").String()})
	require.NoError(t, err)
	defer w.Stop()
	for event := range w.ResultChan() {
		if pod, ok := event.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodSucceeded {
			break
		}
	}
	require.NoError(t, ctx.Err(), "the client has not ended")
	logs, err := pods.GetLogs("client", &corev1.PodLogOptions{}).Stream(t.Context())
	require.NoError(t, err)
	defer logs.Close()
	page, err := io.ReadAll(logs)
	require.NoError(t, err)
	assert.Contains(t, string(page), "Welcome to nginx!")
	r.commandsRunOnNodes()
	r.thePluginAnswers()

	require.NoError(t, c.Reboot(t.Context(), "n2"))
	restarts, err := c.Restarts()
	require.NoError(t, err)
	assert.Equal(t, 1, restarts, "this one, and none by itself")
}

// smokeFlags are flags of the proxies that decide what happens to traffic.
const smokeFlags = "--proxy-mode=nftables --cluster-cidr=10.244.0.0/16,fd00:244::/48"

// hasItsWeight looks at the processor time of the cluster's cgroup, and at the control plane's cgroup.
func (r *recipe) hasItsWeight() {
	name := "kube-proxy-lib-" + filepath.Base(filepath.Dir(r.c.Kubeconfig()))
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.c.PID))
	require.NoError(r.t, err)
	assert.Contains(r.t, string(groups), "/"+name+"/machine\n")
	for pattern, want := range map[string]string{"/sys/fs/cgroup/*/" + name + "/cpu.shares": "10240\n",
		"/sys/fs/cgroup/" + name + "/cpu.weight": "1000\n"} {
		files, err := filepath.Glob(pattern)
		require.NoError(r.t, err)
		for _, file := range files {
			got, err := os.ReadFile(file)
			require.NoError(r.t, err)
			assert.Equal(r.t, want, string(got), file)
		}
	}
}

// commandsRunOnNodes runs `cluster exec`.
func (r *recipe) commandsRunOnNodes() {
	program := filepath.Join(r.dir, "cluster")
	out, err := exec.CommandContext(r.t.Context(), "go", "build", "-o", program, "./cluster").CombinedOutput()
	require.NoError(r.t, err, "%s", out)
	execute := func(input string, args ...string) (output string, status int) {
		cmd := exec.CommandContext(r.t.Context(), program, append([]string{"exec", "--dir",
			filepath.Dir(r.c.Kubeconfig())}, args...)...)
		cmd.Stdin = strings.NewReader(input)
		out, err := cmd.CombinedOutput()
		if !errors.As(err, new(*exec.ExitError)) {
			require.NoError(r.t, err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, node := range []string{"n1", "n2"} {
		out, status := execute("its input\n", node, "sh", "-c", "uname -n; cat; exit 3")
		assert.Equal(r.t, node+"\nits input\n", out)
		assert.Equal(r.t, 3, status)
	}
	rules, status := execute("", "n1", "nft", "list", "table", "ip", "kube-proxy-lib")
	assert.Zero(r.t, status, rules)
	assert.Regexp(r.t, `\b10\.96\.0\.1\b`, rules, "the Service of the API server")
	health, status := execute("", "outside", "curl", "--silent", "--fail", "http://"+r.address("n1")+":10256/healthz")
	assert.Zero(r.t, status, health)
	assert.Contains(r.t, health, "nodeEligible")
	said, status := execute("", "n3", "true")
	assert.Equal(r.t, 1, status)
	assert.Contains(r.t, said, `there is no node "n3"`)
}

// needCluster skips a test unless KPL_CLUSTER=1 asks for it, and returns the folder of the programs of a cluster.
func needCluster(t testing.TB) string {
	if os.Getenv("KPL_CLUSTER") != "1" {
		t.Skip("runs with KPL_CLUSTER=1, after testing/integration/e2e/build cluster")
	}
	for _, program := range []string{"kube-scheduler", "kubelet", "kubectl"} {
		cluster.Program(t, program)
	}
	need.Root(t)
	for _, program := range []string{"runc", "nsenter", "nft", "curl", "conntrack"} {
		need.Program(t, program)
	}
	programs, err := e2e.Programs()
	require.NoError(t, err)
	for _, program := range []string{"bin/containerd", "bin/ctr", "bin/ptp", "bin/coredns", "images.tar"} {
		path := filepath.Join(programs, "..", program)
		_, err := os.Stat(path)
		need.That(t, err == nil, path+" (run testing/integration/e2e/build cluster)")
	}
	return programs
}

// showLogs prints the ends of all logs of a cluster.
func showLogs(t testing.TB, dir string) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.log"))
	require.NoError(t, err)
	more, err := filepath.Glob(filepath.Join(dir, "nodes/*/*.log"))
	require.NoError(t, err)
	for _, path := range append(paths, more...) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		lines := strings.Split(string(b), "\n")
		t.Logf("%s:\n%s", path, strings.Join(lines[max(0, len(lines)-15):], "\n"))
	}
}
