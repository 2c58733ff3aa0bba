package dropin_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// movedServices are the Services whose external IPs the page moves, with the addresses that they have, in externalIPs
// or in the status already.
var movedServices = []struct {
	name     string
	with     func(*corev1.Service)
	all      []string
	commands []int // the commands of the page that move it
}{
	{"web", func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.40", "2001:db8:40::1"} },
		[]string{"203.0.113.40", "2001:db8:40::1"}, []int{1, 2, 3}},
	{"waits", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{"203.0.113.41"}
	}, []string{"203.0.113.41"}, []int{2, 3}},
	{"has", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.ExternalIPs = corev1.ServiceTypeLoadBalancer, []string{"203.0.113.42"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.43"}}
	}, []string{"203.0.113.43", "203.0.113.42"}, []int{2, 3}},
}

// TestThePageAboutKubernetes140 runs every command of docs/kubernetes-1.40.md, in order, in a cluster with mode ipvs
// and external IPs, and then the drop-in: with the page's configuration, and with that and mode ipvs.
func TestThePageAboutKubernetes140(t *testing.T) {
	t.Parallel()
	l := newLab(t, cluster.Options{})
	for _, s := range movedServices {
		l.service(s.name, s.with)
		create(l, kube.EndpointSlice("default/"+s.name).Port("http", 8080).Endpoint("10.244.1.5").OnNode(nodeName).Build())
	}
	l.createKubeProxy("--proxy-mode=ipvs")
	page, err := os.ReadFile("../../../docs/kubernetes-1.40.md")
	require.NoError(t, err)
	kubeconfig := l.AdminKubeconfig(l.Port())
	run := shell(t, kubeconfig)

	var commands []string
	for _, block := range codeBlocks(page, "sh") {
		block = strings.NewReplacer("FILE", kubeconfig, "NAMESPACE", "default").Replace(block)
		commands = append(commands, strings.Split(strings.TrimSpace(block), "\n")...)
	}
	require.Len(t, commands, 4)
	out, status := run(commands[0])
	assert.Equal(t, 1, status, "%s", out)
	assert.Regexp(t, `S6: external IPs, 3 Services\n(.*\n)*.*then not served\n`+
		`( +default/.*\n)* +default/web:http/TCP at 203\.0\.113\.40:80,`, out)
	const address = `{"ip": "ADDRESS"}`
	require.Contains(t, commands[2], address)
	for _, s := range movedServices {
		var addresses []string
		for _, ip := range s.all {
			addresses = append(addresses, strings.Replace(address, "ADDRESS", ip, 1))
		}
		values := strings.NewReplacer(address, strings.Join(addresses, ", "), "NAME", s.name)
		for _, i := range s.commands {
			command := values.Replace(commands[i])
			out, status := run(command)
			require.Zero(t, status, "%s\n%s", command, out)
		}
		moved, err := l.Client.CoreV1().Services("default").Get(t.Context(), s.name, metav1.GetOptions{})
		require.NoError(t, err)
		assert.Empty(t, moved.Spec.ExternalIPs)
		var ips []string
		for _, ingress := range moved.Status.LoadBalancer.Ingress {
			ips = append(ips, ingress.IP)
		}
		assert.Equal(t, s.all, ips, s.name)
	}
	out, status = run(commands[0])
	assert.Less(t, status, 2, "only differences of the modes may be left\n%s", out)
	assert.NotContains(t, out, "S6:")

	blocks := codeBlocks(page, "yaml")
	require.Len(t, blocks, 1)
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n" + text
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	nftables := write("nftables.yaml", blocks[0])
	out, status = run("kube-proxy preflight --same --from nftables --to " + nftables + " --all-nodes --kubeconfig " +
		kubeconfig)
	assert.Zero(t, status, "%s", out)
	ipvs := strings.Replace(blocks[0], "mode: nftables", "mode: ipvs", 1)
	refused := l.start("--kubeconfig", kubeconfig, "--hostname-override", nodeName, "--config", write("ipvs.yaml", ipvs))
	refused.wait()
	require.Error(t, refused.err)
	assert.Contains(t, refused.logged(), `mode: Unsupported value: "ipvs"`)
	machine := "oomScoreAdj: 0\nconntrack:\n  maxPerCore: 0 # the limit is the machine's\n" +
		"clientConnection:\n  kubeconfig: " + l.AdminKubeconfig(l.relay.Port) + "\n"
	served := l.start("--hostname-override", nodeName, "--config",
		write("served.yaml", blocks[0]+machine))
	for _, s := range movedServices {
		for _, ip := range s.all {
			served.await("an address in the rules", func() bool { return strings.Contains(l.rules(), ip) })
		}
	}
	served.terminate()
}

// createKubeProxy creates kubeadm's DaemonSet of kube-proxy with these arguments.
func (l *lab) createKubeProxy(args ...string) {
	l.t.Helper()
	l.awaitNamespace(metav1.NamespaceSystem)
	labels := map[string]string{"k8s-app": "kube-proxy"}
	_, err := l.Client.AppsV1().DaemonSets(metav1.NamespaceSystem).Create(l.t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kube-proxy"},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "kube-proxy", Image: "registry.example/kube-proxy",
					Command: append([]string{"kube-proxy"}, args...)}}}}},
	}, metav1.CreateOptions{})
	require.NoError(l.t, err)
}

// codeBlocks returns the code blocks of a page in a language.
func codeBlocks(page []byte, language string) (blocks []string) {
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(page, -1) {
		blocks = append(blocks, string(m[1]))
	}
	return blocks
}

// shell returns a function that runs a command with the drop-in as kube-proxy and with kubectl, and returns what it
// prints and its exit status.
func shell(t *testing.T, kubeconfig string) func(command string) (string, int) {
	folder := t.TempDir()
	require.NoError(t, os.Symlink(mustBuild(t), filepath.Join(folder, "kube-proxy")))
	require.NoError(t, os.Symlink(cluster.Program(t, "kubectl"), filepath.Join(folder, "kubectl")))
	return func(command string) (string, int) {
		c := exec.CommandContext(t.Context(), "sh", "-c", command)
		c.Env = append(os.Environ(), "PATH="+folder+":"+os.Getenv("PATH"), "KUBECONFIG="+kubeconfig, "HOME="+folder)
		out, err := c.CombinedOutput()
		if status := (*exec.ExitError)(nil); err != nil && !errors.As(err, &status) {
			t.Fatal(err)
		}
		return string(out), c.ProcessState.ExitCode()
	}
}
