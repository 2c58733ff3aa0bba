package e2e_test

import (
	_ "embed"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
)

//go:embed testdata/probes.yaml
var probesManifest string

// probedPod is a pod of the test, with its probes in YAML.
type probedPod struct {
	// Name is the pod's name, App that of its Service, Node where it runs.
	Name, App, Node string
	// HostNetwork puts it into the network of its node.
	HostNetwork bool
	// Port is the number of its TCP port.
	Port int
	// Args, Readiness and Liveness are YAML: the arguments of agnhost, and the two probes.
	Args, Readiness, Liveness string
}

// probedPods have probes of every kind; the last two are behind one Service.
func probedPods() []probedPod {
	const server = "[netexec, --http-port=8080]"
	get := "httpGet: {path: /healthz, port: 8080}"
	pods := []probedPod{
		{Name: "http", Node: "n1", Port: 8080, Args: server, Readiness: get, Liveness: get},
		{Name: "tcp", Node: "n1", Port: 8080, Args: server, Readiness: "tcpSocket: {port: 8080}",
			Liveness: "tcpSocket: {port: 8080}"},
		{Name: "grpc", Node: "n1", Port: 5000, Args: "[grpc-health-checking]", Readiness: "grpc: {port: 5000}",
			Liveness: "grpc: {port: 5000}"},
		{Name: "host", Node: "n1", HostNetwork: true, Port: 8090, Args: "[netexec, --http-port=8090, --udp-port=8091]",
			Readiness: "httpGet: {path: /healthz, port: 8090}", Liveness: "tcpSocket: {port: 8090}"},
	}
	for i := range pods {
		pods[i].App = pods[i].Name
	}
	for _, node := range []string{"n1", "n2"} {
		pods = append(pods, probedPod{Name: "exec-" + node, App: "exec", Node: node, Port: 8080, Args: server,
			Readiness: "exec: {command: [test, '!', -e, /tmp/unready]}", Liveness: "exec: {command: ['true']}"})
	}
	return pods
}

// TestProbes runs pods with readiness and liveness probes of every kind on nodes with cmd/kube-proxy. They become ready
// and stay ready, also behind Services with traffic policy Local. A pod whose readiness probe fails leaves its Service,
// and returns when the probe succeeds again.
//
// It runs where KPL_CLUSTER=1 asks for it: what it needs takes long to build.
func TestProbes(t *testing.T) {
	options := e2e.Options{Programs: needCluster(t), Nodes: 2, Dir: filepath.Join(t.TempDir(), "cluster")}
	folder := cluster.Build(t, "kube-proxy")
	all := newRecipe(t, options, "", folder)
	for _, mode := range []string{"nftables", "iptables"} {
		t.Run(mode, func(t *testing.T) {
			r := *all
			r.t = t
			r.startProxy(filepath.Join(folder, "kube-proxy"), mode)
			values := map[string]any{"Image": imageutils.GetE2EImage(imageutils.Agnhost), "Pods": probedPods()}
			r.apply(probesManifest, values)
			r.shell("kubectl wait --for=condition=Ready pod --all --timeout=5m")
			r.probesSucceed("http", "tcp", "grpc", "host", "exec-n1", "exec-n2")

			services := map[string]int{}
			for _, p := range probedPods() {
				services[p.App] = p.Port
			}
			values["Services"], values["Policy"] = services, "Cluster"
			r.apply(probesManifest, values)
			for _, app := range []string{"http", "tcp"} {
				r.answers("n2", "http://"+r.clusterIP(app)+"/hostname", app)
			}
			values["Policy"] = "Local"
			r.apply(probesManifest, values)
			for _, app := range []string{"http", "tcp"} {
				url := "http://" + r.clusterIP(app) + "/hostname"
				require.Eventually(t, func() bool {
					_, err := r.try("n2", "curl", "--silent", "--max-time", "5", url)
					return err != nil
				}, waitTimeout, 200*time.Millisecond, "a node without an endpoint of %s, with policy Local", app)
				r.answers("n1", url, app)
			}
			r.probesSucceed("http", "tcp", "grpc", "host", "exec-n1", "exec-n2")

			values["Policy"] = "Cluster"
			r.apply(probesManifest, values)
			url := "http://" + r.clusterIP("exec") + "/hostname"
			for _, node := range []string{"n1", "n2"} {
				r.answers(node, url, "exec-n1", "exec-n2")
			}
			_, err := r.kubectlExec("exec-n1", "touch", "/tmp/unready")
			require.NoError(t, err)
			r.shell("kubectl wait --for=condition=Ready=false pod exec-n1 --timeout=5m")
			for _, node := range []string{"n1", "n2"} {
				r.answers(node, url, "exec-n2")
			}
			r.probesSucceed("http", "tcp", "grpc", "host", "exec-n2")
			_, err = r.kubectlExec("exec-n1", "rm", "/tmp/unready")
			require.NoError(t, err)
			r.shell("kubectl wait --for=condition=Ready pod exec-n1 --timeout=5m")
			for _, node := range []string{"n1", "n2"} {
				r.answers(node, url, "exec-n1", "exec-n2")
			}
			r.shell("kubectl delete services exec grpc host http tcp")
			r.shell("kubectl delete pods --all --grace-period=1")
		})
	}
}

// startProxy replaces the proxies of all nodes. What cmd/kube-proxy has left is removed; it removes by itself what
// kube-proxy has left.
func (r *recipe) startProxy(program, mode string) {
	r.t.Helper()
	require.NoError(r.t, r.c.Proxy(r.t.Context(), program+" --kubeconfig={kubeconfig} --hostname-override={node} "+
		"--proxy-mode="+mode+" --cluster-cidr={clusterCIDRs} --conntrack-max-per-core=0 --oom-score-adj=0",
		filepath.Join(r.programs, "kube-proxy")+" --cleanup"))
}

// kubectlExec runs a command in a pod, and returns its output.
func (r *recipe) kubectlExec(pod string, args ...string) (string, error) {
	cmd := exec.CommandContext(r.t.Context(), r.kubectl, append([]string{"--kubeconfig", r.c.Kubeconfig(), "exec", pod,
		"--"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%v in %s: %w: %s", args, pod, err, out)
	}
	return string(out), err
}

// clusterIP returns the cluster IP of a Service.
func (r *recipe) clusterIP(service string) string {
	s, err := r.client.CoreV1().Services("default").Get(r.t.Context(), service, metav1.GetOptions{})
	require.NoError(r.t, err)
	return s.Spec.ClusterIP
}

// answers waits until a node gets answers from these pods, and from no others: each of them sends one of 20 in a row,
// for which curl makes 20 connections.
func (r *recipe) answers(node, url string, pods ...string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		said, err := r.try(node, "curl", "--silent", "--fail", "--max-time", "5", "--header", "Connection: close",
			"--write-out", "\n", url+"?[1-20]")
		if err != nil {
			return false
		}
		got := map[string]bool{}
		for _, name := range strings.Fields(said) {
			got[name] = true
		}
		for _, name := range pods {
			if !got[name] {
				return false
			}
		}
		return len(got) == len(pods)
	}, waitTimeout, 200*time.Millisecond, "%v answer on node %s", pods, node)
}

// probesSucceed waits until each probe of these pods has succeeded five more times. None has failed meanwhile, and no
// container has restarted.
func (r *recipe) probesSucceed(names ...string) {
	r.t.Helper()
	const more = 5
	before, err := r.probeResults()
	require.NoError(r.t, err)
	ready := r.readySince(names)
	now := before
	require.Eventually(r.t, func() bool {
		if now, err = r.probeResults(); err != nil {
			return false
		}
		for _, name := range names {
			for _, kind := range []string{"Readiness", "Liveness"} {
				succeeded := name + " " + kind + " successful"
				if now[succeeded] < before[succeeded]+more {
					return false
				}
			}
		}
		return true
	}, waitTimeout, 500*time.Millisecond, "the probes succeed")
	for _, name := range names {
		for _, kind := range []string{"Readiness", "Liveness"} {
			failed := name + " " + kind + " failed"
			assert.Equal(r.t, before[failed], now[failed], failed)
		}
	}
	assert.Equal(r.t, ready, r.readySince(names), "they were ready all the time")
}

// readySince says since when pods are ready, and how often their containers have restarted.
func (r *recipe) readySince(names []string) map[string]string {
	r.t.Helper()
	out := map[string]string{}
	for _, name := range names {
		p, err := r.client.CoreV1().Pods("default").Get(r.t.Context(), name, metav1.GetOptions{})
		require.NoError(r.t, err)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady {
				out[name] = fmt.Sprintf("%s since %v, %d restarts", c.Status, c.LastTransitionTime,
					p.Status.ContainerStatuses[0].RestartCount)
			}
		}
	}
	return out
}

// probeResults returns how many probes of pods had which result, as the kubelets count them.
func (r *recipe) probeResults() (map[string]float64, error) {
	out := map[string]float64{}
	for _, node := range []string{"n1", "n2"} {
		text, err := r.try(node, "curl", "--silent", "--show-error", "--fail", "--insecure",
			"https://127.0.0.1:10250/metrics/probes")
		if err != nil {
			return nil, err
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(strings.NewReader(text))
		if err != nil {
			return nil, fmt.Errorf("metrics of the kubelet on %s: %w", node, err)
		}
		for _, m := range families["prober_probe_total"].GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			out[labels["pod"]+" "+labels["probe_type"]+" "+labels["result"]] += m.GetCounter().GetValue()
		}
	}
	return out, nil
}
