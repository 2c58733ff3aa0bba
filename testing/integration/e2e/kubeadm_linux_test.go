package e2e_test

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
)

//go:embed testdata/kubeadm.yaml
var kubeadmManifest string

//go:embed testdata/web.yaml
var webManifest string

const (
	theirImage = "registry.example/kube-proxy:stock"
	ourImage   = "registry.example/kube-proxy-lib:test"
)

// recipe is a cluster on which a test follows docs/kubeadm.md, with clients that count.
type recipe struct {
	t        testing.TB
	c        *e2e.Cluster
	client   kubernetes.Interface
	kubectl  string
	programs string // the folder of kube-proxy-lib's
	doc      string
	dir      string // in which commands run
	services []corev1.Service
	logs     map[string]string // of the clients that are no pods, by where they run: the path
}

// TestTheRecipeForKubeadm follows docs/kubeadm.md from the canary to the way back, on a cluster whose nodes run
// kube-proxy as kubeadm configures it, in either mode. Meanwhile clients in pods, on nodes and outside make new
// connections to cluster IPs, node ports and load balancers, and keep one to each: none may be lost. Before the way
// back the proxies are updated, and a node is drained; at the end one reboots.
//
// It runs where KPL_CLUSTER=1 asks for it: what it needs takes long to build.
func TestTheRecipeForKubeadm(t *testing.T) {
	programs := needCluster(t)
	folder := cluster.Build(t, "kube-proxy")
	archive := filepath.Join(t.TempDir(), "images.tar")
	options := e2e.Options{Programs: programs}
	require.NoError(t, e2e.WriteArchive(options.Root(), archive, []e2e.Image{
		{Name: theirImage, Programs: map[string]string{"/usr/local/bin/kube-proxy": cluster.Program(t, "kube-proxy")}},
		{Name: ourImage, Entrypoint: []string{"/kube-proxy"},
			Programs: map[string]string{"/kube-proxy": filepath.Join(folder, "kube-proxy")}},
	}))
	for _, mode := range []string{"iptables", "nftables"} {
		t.Run("from "+mode, func(t *testing.T) {
			options.Nodes, options.Dir = 3, filepath.Join(t.TempDir(), "cluster")
			r := newRecipe(t, options, archive, folder)
			r.startKubeProxy(mode)
			r.startTraffic()
			r.toKubeProxyLib()
			r.restartAll()
			r.drain("n3")
			r.andBack("n2")
			r.noneWasLost()
			r.reboot("n3")
		})
	}
}

// newRecipe starts a cluster, and gives its nodes an archive of images, unless its path is empty.
func newRecipe(t testing.TB, o e2e.Options, archive, programs string) *recipe {
	doc, err := os.ReadFile("../../../docs/kubeadm.md")
	require.NoError(t, err)
	c, err := e2e.Up(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			showLogs(t, o.Dir)
		}
		assert.NoError(t, c.Down(context.Background()))
		assert.NoDirExists(t, o.Dir)
	})
	if archive != "" {
		require.NoError(t, c.Load(t.Context(), archive))
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	require.NoError(t, err)
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return &recipe{t: t, c: c, client: client, kubectl: cluster.Program(t, "kubectl"), programs: programs,
		doc: string(doc), dir: t.TempDir(), logs: map[string]string{}}
}

// shell runs a command of the recipe, and returns its output.
func (r *recipe) shell(command string) string {
	r.t.Helper()
	cmd := exec.Command("sh", "-euc", command)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+r.c.Kubeconfig(),
		"PATH="+filepath.Dir(r.kubectl)+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	require.NoError(r.t, err, "%s\n%s", command, out)
	return string(out)
}

// block returns the first block of a language in a section of the recipe, with names in place of others.
func (r *recipe) block(section, language string, names ...string) string {
	r.t.Helper()
	_, text, found := strings.Cut(r.doc, "\n## "+section)
	require.True(r.t, found, section)
	_, text, found = strings.Cut(text, "\n```"+language+"\n")
	require.True(r.t, found, section)
	text, _, _ = strings.Cut(text, "\n```\n")
	return strings.NewReplacer(names...).Replace(text)
}

func (r *recipe) apply(manifest string, values any) {
	r.t.Helper()
	var text bytes.Buffer
	require.NoError(r.t, template.Must(template.New("").Parse(manifest)).Execute(&text, values))
	path := filepath.Join(r.t.TempDir(), "manifest.yaml")
	require.NoError(r.t, os.WriteFile(path, text.Bytes(), 0o644))
	r.shell("kubectl apply -f " + path)
}

// server is the API server's URL for nodes and pods.
func (r *recipe) server() string {
	config, err := clientcmd.LoadFromFile(filepath.Join(filepath.Dir(r.c.Kubeconfig()), "kubeconfig-inside"))
	require.NoError(r.t, err)
	return config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server
}

func (r *recipe) startKubeProxy(mode string) {
	r.apply(kubeadmManifest, map[string]string{"Mode": mode, "Server": r.server(), "Image": theirImage})
	r.shell("kubectl -n kube-system rollout status daemonset kube-proxy --timeout=5m")
	r.shell("kubectl -n kube-system rollout status deployment coredns --timeout=5m")
}

// startTraffic starts servers and all clients, and returns when each client has got answers.
func (r *recipe) startTraffic() {
	exe, err := os.Executable()
	require.NoError(r.t, err)
	programs := filepath.Join(filepath.Dir(r.c.Kubeconfig()), "programs")
	require.NoError(r.t, os.Mkdir(programs, 0o755))
	copied, err := os.ReadFile(exe)
	require.NoError(r.t, err)
	require.NoError(r.t, os.WriteFile(filepath.Join(programs, "client"), copied, 0o755))
	names := []string{"web", "moved"}
	command := func(args []string) string { return `["` + strings.Join(args, `", "`) + `"]` }
	values := map[string]any{"Services": names, "Image": imageutils.GetE2EImage(imageutils.Agnhost),
		"Programs": programs, "Traffic": command([]string{"sleep", "infinity"})}
	r.apply(webManifest, values)
	for _, name := range names {
		r.shell("kubectl rollout status deployment " + name + " --timeout=5m")
		r.shell("kubectl wait --for=jsonpath='{.status.loadBalancer.ingress[1]}' --timeout=5m service " + name)
		s, err := r.client.CoreV1().Services("default").Get(r.t.Context(), name, metav1.GetOptions{})
		require.NoError(r.t, err)
		r.services = append(r.services, *s)
	}
	var inside, outside []string
	url := func(ip string, port int32, s corev1.Service) string {
		return "http://" + net.JoinHostPort(ip, strconv.Itoa(int(port))) + "/hostname#" + s.Name
	}
	for _, s := range r.services {
		for _, ip := range s.Spec.ClusterIPs {
			inside = append(inside, url(ip, 80, s))
		}
		for _, ingress := range s.Status.LoadBalancer.Ingress {
			outside = append(outside, url(ingress.IP, 80, s))
		}
		nodes, err := r.client.CoreV1().Nodes().List(r.t.Context(), metav1.ListOptions{})
		require.NoError(r.t, err)
		for _, n := range nodes.Items {
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					outside = append(outside, url(a.Address, s.Spec.Ports[0].NodePort, s))
				}
			}
		}
	}
	r.startClient("", outside)
	for _, node := range []string{"n1", "n2", "n3"} {
		r.startClient(node, inside)
	}
	values["Traffic"] = command(append([]string{"/programs/client", trafficCommand}, inside...))
	r.apply(webManifest, values)
	r.shell("kubectl rollout status daemonset traffic --timeout=5m")
	r.trafficGoesOn()
}

// startClient starts a client on a node or, without a name, outside.
func (r *recipe) startClient(node string, urls []string) {
	client := filepath.Join(filepath.Dir(r.c.Kubeconfig()), "programs/client")
	cmd, err := r.c.Command(r.t.Context(), node, append([]string{client, trafficCommand}, urls...)...)
	require.NoError(r.t, err)
	log, err := os.Create(filepath.Join(r.dir, "client-"+node))
	require.NoError(r.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(r.t, cmd.Start())
	r.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_, _ = cmd.Wait(), log.Close()
	})
	r.logs[node] = log.Name()
}

// said returns the output of the clients, by where they are: outside, and on each node and in a pod there.
func (r *recipe) said() (map[string]string, error) {
	out := map[string]string{}
	for node, path := range r.logs {
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		out["on node "+node] = string(b)
	}
	pods, err := r.client.CoreV1().Pods("default").List(r.t.Context(), metav1.ListOptions{LabelSelector: "app=traffic"})
	if err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		for _, c := range p.Status.ContainerStatuses {
			if c.RestartCount > 0 {
				return nil, fmt.Errorf("the client %s has restarted: what it said before is lost", p.Name)
			}
		}
		b, err := r.client.CoreV1().Pods("default").GetLogs(p.Name, &corev1.PodLogOptions{}).DoRaw(r.t.Context())
		if err != nil {
			return nil, fmt.Errorf("logs of %s: %w", p.Name, err)
		}
		out["in a pod on node "+p.Spec.NodeName] = string(b)
	}
	if nodes := len(r.logs) - 1; len(out) != 2*nodes+1 {
		return nil, fmt.Errorf("%d clients, not %d", len(out), 2*nodes+1)
	}
	return out, nil
}

// answered returns how many answers a client has got, at least from each URL in each way, and in all.
func answered(said string) (least, all int) {
	var of string
	i := strings.LastIndex(said, countLine)
	if i < 0 {
		return 0, 0
	}
	line, _, whole := strings.Cut(said[i+len(countLine):], "\n")
	if !whole { // the one before it
		return answered(said[:i])
	}
	_, _ = fmt.Sscan(line, &least, &of, &all)
	return least, all
}

// trafficGoesOn waits until every client has got further answers, from each URL in each way.
func (r *recipe) trafficGoesOn() {
	r.t.Helper()
	const more = 10
	before, err := r.said()
	require.NoError(r.t, err)
	require.Eventually(r.t, func() bool {
		now, err := r.said()
		if err != nil {
			return false
		}
		for where, said := range now {
			was, _ := answered(before[where])
			if is, _ := answered(said); is < was+more {
				return false
			}
		}
		return true
	}, waitTimeout, time.Second, "all clients go on")
}

// noneWasLost says what all clients have lost, if anything.
func (r *recipe) noneWasLost() {
	r.t.Helper()
	r.trafficGoesOn()
	all, err := r.said()
	require.NoError(r.t, err)
	for where, said := range all {
		_, count := answered(said)
		r.t.Logf("%s: %d answers", where, count)
		assert.NotContains(r.t, said, lostLine, where)
	}
}

// awaitProxy waits until a node runs one ready pod of a DaemonSet, and none of the other.
func (r *recipe) awaitProxy(node, app string) {
	r.t.Helper()
	require.Eventually(r.t, func() bool {
		pods, err := r.client.CoreV1().Pods(metav1.NamespaceSystem).List(r.t.Context(), metav1.ListOptions{
			LabelSelector: "k8s-app in (kube-proxy, kube-proxy-lib, kube-proxy-lib-node)",
			FieldSelector: "spec.nodeName=" + node})
		if err != nil || len(pods.Items) != 1 || pods.Items[0].Labels["k8s-app"] != app {
			return false
		}
		for _, c := range pods.Items[0].Status.Conditions {
			if c.Type == corev1.PodReady {
				return c.Status == corev1.ConditionTrue
			}
		}
		return false
	}, waitTimeout, 200*time.Millisecond, "%s runs on %s", app, node)
}

// on runs a command on a node and returns its output.
func (r *recipe) on(node string, args ...string) string {
	r.t.Helper()
	out, err := r.try(node, args...)
	require.NoError(r.t, err)
	return out
}

// try is on for a command that may fail.
func (r *recipe) try(node string, args ...string) (string, error) {
	cmd, err := r.c.Command(r.t.Context(), node, args...)
	if err != nil {
		return "", err
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%v on %s: %w: %s", args, node, err, out)
	}
	return string(out), err
}

// toKubeProxyLib follows the steps 1 to 6.
func (r *recipe) toKubeProxyLib() {
	preflight := exec.Command(filepath.Join(r.programs, "kube-proxy"), "preflight", "--from", "daemonset", "--to",
		"nftables", "--kubeconfig", r.c.Kubeconfig(), "--all-nodes")
	out, err := preflight.CombinedOutput()
	r.t.Logf("1. preflight: %v\n%s", err, out)
	assert.Contains(r.t, []int{0, 1}, preflight.ProcessState.ExitCode(), "it could read all")

	host, port, err := net.SplitHostPort(strings.TrimPrefix(r.server(), "https://"))
	require.NoError(r.t, err)
	overlay := r.block("2.", "yaml", "REGISTRY/kube-proxy-lib", "registry.example/kube-proxy-lib", "newTag: TAG",
		"newTag: test", "10.244.0.0/16", "10.244.0.0/16, 'fd00:244::/48'", "api.example", host, `"6443"`, `"`+port+`"`)
	root, err := filepath.Abs("../../..")
	require.NoError(r.t, err)
	require.NoError(r.t, os.Mkdir(filepath.Join(r.dir, "kube-proxy"), 0o755))
	require.NoError(r.t, os.Symlink(filepath.Join(root, "cmd"), filepath.Join(r.dir, "cmd")))
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, "kube-proxy/kustomization.yaml"), []byte(overlay), 0o644))

	r.t.Log("3.", r.shell(r.block("3.", "sh")))
	r.t.Log("4.", r.shell(r.block("4.", "sh")))
	for _, node := range []string{"n1", "n2", "n3"} {
		r.awaitProxy(node, "kube-proxy")
	}
	r.trafficGoesOn()
	r.t.Log("5.", r.shell(r.block("5.", "sh", "NODE", "n2")))
	r.isOurs("n2")
	r.t.Log("6.", r.shell("kubectl label nodes --all service-proxy=kube-proxy-lib"))
	for _, node := range []string{"n1", "n3"} {
		r.isOurs(node)
	}
}

// isOurs waits for kube-proxy-lib on a node, and looks at what step 5 looks at.
func (r *recipe) isOurs(node string) {
	r.t.Helper()
	r.awaitProxy(node, "kube-proxy-lib")
	pod := r.shell("kubectl -n kube-system get pods --selector k8s-app=kube-proxy-lib --field-selector spec.nodeName=" +
		node + " --output name")
	assert.Contains(r.t, r.shell("kubectl -n kube-system logs "+strings.TrimSpace(pod)), "applied for the first time")
	health := r.on("", "curl", "--silent", "--fail", "http://"+r.address(node)+":10256/healthz")
	assert.Contains(r.t, health, "nodeEligible")
	assert.Contains(r.t, r.on(node, "nft", "list", "table", "ip", "kube-proxy-lib"), r.services[0].Spec.ClusterIP)
	require.Eventually(r.t, func() bool { // it removes them after its own first Sync
		rules, err := r.try(node, "nft", "list", "ruleset")
		return err == nil && !regexp.MustCompile(`KUBE-SVC|KUBE-SEP|table ip6? kube-proxy \{`).MatchString(rules)
	}, waitTimeout, time.Second, "kube-proxy's rules go")
	same := exec.Command(filepath.Join(r.programs, "kube-proxy"), "preflight", "--same", "--from", "nftables", "--to",
		"nftables", "--kubeconfig", r.c.Kubeconfig(), "--node-name", node)
	out, err := same.CombinedOutput()
	require.NoError(r.t, err, string(out))
	r.trafficGoesOn()
}

func (r *recipe) address(node string) string {
	n, err := r.client.CoreV1().Nodes().Get(r.t.Context(), node, metav1.GetOptions{})
	require.NoError(r.t, err)
	return n.Status.Addresses[0].Address
}

// restartAll replaces the proxies of all nodes, as an update does.
func (r *recipe) restartAll() {
	r.shell("kubectl -n kube-system rollout restart daemonset kube-proxy-lib")
	r.shell("kubectl -n kube-system rollout status daemonset kube-proxy-lib --timeout=5m")
	r.trafficGoesOn()
}

// drain moves the pods of a Service away from a node, and lets them come back.
func (r *recipe) drain(node string) {
	r.t.Log(r.shell("kubectl drain " + node + " --pod-selector app=moved --timeout=5m"))
	r.shell("kubectl rollout status deployment moved --timeout=5m")
	r.trafficGoesOn()
	r.shell("kubectl uncordon " + node)
}

// andBack follows step 7.
func (r *recipe) andBack(node string) {
	r.shell(r.block("7.", "sh", "NODE", node))
	r.awaitProxy(node, "kube-proxy")
	r.trafficGoesOn()
	text, err := os.ReadFile(filepath.Join(r.dir, "cmd/kube-proxy/deploy/cleanup.yaml"))
	require.NoError(r.t, err)
	job := strings.ReplaceAll(string(text), "registry.example/kube-proxy-lib:latest", ourImage)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, "cleanup.yaml"), []byte(job), 0o644))
	_, rest, _ := strings.Cut(r.doc, "\n## 7.")
	command := regexp.MustCompile("(?m)^sed [^\n]*\n[^\n]*wait [^\n]*$").FindString(rest)
	require.NotEmpty(r.t, command)
	r.shell(strings.NewReplacer("the-node", node, "cmd/kube-proxy/deploy/cleanup.yaml", "cleanup.yaml").Replace(command))
	assert.NotContains(r.t, r.on(node, "nft", "list", "tables"), "kube-proxy-lib")
	r.trafficGoesOn()
}

// reboot ends a node without a warning. When it is back, its proxy serves what comes in there.
func (r *recipe) reboot(node string) {
	require.NoError(r.t, r.c.Reboot(r.t.Context(), node))
	restarts, err := r.c.Restarts()
	require.NoError(r.t, err)
	assert.Equal(r.t, 1, restarts, "this one, and none by itself")
	at := fmt.Sprintf("http://%s/hostname", net.JoinHostPort(r.address(node),
		strconv.Itoa(int(r.services[0].Spec.Ports[0].NodePort))))
	r.on("", "curl", "--silent", "--show-error", "--fail", "--retry", "1000", "--retry-delay", "1", "--retry-all-errors",
		"--retry-max-time", fmt.Sprint(int(waitTimeout.Seconds())), "--max-time", "5", at)
	r.awaitProxy(node, "kube-proxy-lib")
}
