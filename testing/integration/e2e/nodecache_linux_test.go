package e2e_test

import (
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

//go:embed testdata/nodecache.yaml
var nodeCacheManifest string

const (
	nodeCacheImage = "registry.example/node-cache:test"
	// The address of DNS in the cluster, and the one that only the cache has.
	dnsClusterIP = "10.96.0.10"
	nodeCacheIP  = "169.254.20.10"
)

// dnsCache is a cluster in which a test asks DNS for names.
type dnsCache struct {
	*recipe
	asked *int // the number of names that were asked for
}

// TestNodeLocalDNSCache runs NodeLocal DNSCache beside kube-proxy, and beside cmd/kube-proxy in two modes. On every
// node the cache answers what pods and processes ask at the cluster IP of DNS, also after the proxy has restarted. When
// the cache ends, CoreDNS answers there again.
//
// It runs where KPL_CLUSTER=1 asks for it and KPL_NODE_CACHE names the program node-cache of k8s.io/dns, which the
// script build does not make: it says so, because .ci/deep shows nothing of a test that skips.
func TestNodeLocalDNSCache(t *testing.T) {
	program := os.Getenv("KPL_NODE_CACHE")
	if program == "" {
		t.Skip("NOT RUN: NodeLocal DNSCache: KPL_NODE_CACHE does not name the program node-cache, which no script makes")
	}
	options := e2e.Options{Programs: needCluster(t), Nodes: 2, Dir: filepath.Join(t.TempDir(), "cluster")}
	need.Program(t, "ip")
	folder := cluster.Build(t, "kube-proxy")
	archive := filepath.Join(t.TempDir(), "images.tar")
	require.NoError(t, e2e.WriteArchive(options.Root(), archive, []e2e.Image{
		{Name: nodeCacheImage, Programs: map[string]string{"/node-cache": program}}}))
	asked := 0
	all := &dnsCache{recipe: newRecipe(t, options, archive, folder), asked: &asked}
	all.startClients()
	ours := filepath.Join(folder, "kube-proxy")
	for _, proxy := range []struct{ name, program, mode string }{
		{"kube-proxy", "kube-proxy", "nftables"},
		{"kube-proxy-lib in mode nftables", ours, "nftables"},
		{"kube-proxy-lib in mode iptables", ours, "iptables"},
	} {
		t.Run(proxy.name, func(t *testing.T) {
			r := *all.recipe
			r.t = t
			d := &dnsCache{recipe: &r, asked: &asked}
			d.startProxy(proxy.program, proxy.mode)
			d.shell("kubectl -n kube-system rollout status deployment coredns --timeout=5m")
			d.awaitDNS(dnsClusterIP)
			d.ask(dnsClusterIP)

			d.apply(nodeCacheManifest, map[string]string{"Image": nodeCacheImage, "Own": nodeCacheIP,
				"ClusterIP": dnsClusterIP})
			d.shell("kubectl -n kube-system rollout status daemonset node-local-dns --timeout=5m")
			d.awaitCache()
			d.cacheAnswers()
			d.startProxy(proxy.program, proxy.mode)
			upstream, err := d.client.CoreV1().Services(metav1.NamespaceSystem).Get(t.Context(), "kube-dns-upstream",
				metav1.GetOptions{})
			require.NoError(t, err)
			d.awaitDNS(upstream.Spec.ClusterIP) // by the new proxy's rules: the cache does not answer there
			d.cacheAnswers()

			d.shell("kubectl -n kube-system delete daemonset node-local-dns")
			d.shell("kubectl -n kube-system wait --for=delete pod --selector k8s-app=node-local-dns --timeout=5m")
			d.ask(dnsClusterIP)
			for _, node := range []string{"n1", "n2"} {
				_, err := d.try(node, "ip", "link", "show", "nodelocaldns")
				assert.Error(t, err, "node-cache has removed its interface")
			}
		})
	}
}

// startClients starts a pod on each node, and one there in the node's own network.
func (d *dnsCache) startClients() {
	for _, node := range []string{"n1", "n2"} {
		for _, host := range []bool{false, true} {
			name := "client-" + node
			if host {
				name += "-host"
			}
			_, err := d.client.CoreV1().Pods("default").Create(d.t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: corev1.PodSpec{NodeName: node, HostNetwork: host, DNSPolicy: corev1.DNSClusterFirstWithHostNet,
					Containers: []corev1.Container{{Name: "client", Image: clientImage,
						Command: []string{"sleep", "infinity"}}}}}, metav1.CreateOptions{})
			require.NoError(d.t, err)
		}
	}
	d.shell("kubectl wait --for=condition=Ready pod --all --timeout=5m")
}

var dnsClients = []string{"client-n1", "client-n1-host", "client-n2", "client-n2-host"}

// awaitDNS waits until every client resolves a name at a server.
func (d *dnsCache) awaitDNS(server string) {
	d.t.Helper()
	for _, client := range dnsClients {
		require.Eventually(d.t, func() bool {
			_, err := d.dig(client, server)
			return err == nil
		}, waitTimeout, 200*time.Millisecond, "%s resolves names at %s", client, server)
	}
}

// dig asks a server for a name that nobody has asked for, and returns it. The name has an address in it, which is the
// answer of CoreDNS.
func (d *dnsCache) dig(client, server string, flags ...string) (name string, err error) {
	*d.asked++
	address := fmt.Sprintf("10.0.%d.%d", *d.asked/250, 1+*d.asked%250)
	name = strings.ReplaceAll(address, ".", "-") + ".default.pod.cluster.local"
	out, err := d.kubectlExec(client, append([]string{"dig", "+short", "@" + server, name}, flags...)...)
	if err == nil && strings.TrimSpace(out) != address {
		err = fmt.Errorf("%s asked %s for %s: %q", client, server, name, out)
	}
	return name, err
}

// ask has every client resolve names at an address, with UDP and TCP, and returns the names by client.
func (d *dnsCache) ask(server string) map[string][]string {
	d.t.Helper()
	names := map[string][]string{}
	for _, client := range dnsClients {
		for _, flag := range []string{"+notcp", "+tcp"} {
			name, err := d.dig(client, server, flag)
			assert.NoError(d.t, err)
			names[client] = append(names[client], name)
		}
	}
	return names
}

// awaitCache waits until every client gets its answers from the cache of its node.
func (d *dnsCache) awaitCache() {
	d.t.Helper()
	for _, client := range dnsClients {
		require.Eventually(d.t, func() bool {
			name, err := d.dig(client, dnsClusterIP)
			return err == nil && strings.Contains(d.cacheLog(client), name)
		}, waitTimeout, 200*time.Millisecond, "the cache answers %s", client)
	}
}

// cacheAnswers asks at both addresses, and looks at the log of each node's cache for what was asked there. It sees the
// address of the pod: nothing has translated the packets.
func (d *dnsCache) cacheAnswers() {
	d.t.Helper()
	for _, server := range []string{dnsClusterIP, nodeCacheIP} {
		for client, names := range d.ask(server) {
			from := server // a process on the node has the same address as the cache
			if !strings.HasSuffix(client, "-host") {
				pod, err := d.client.CoreV1().Pods("default").Get(d.t.Context(), client, metav1.GetOptions{})
				require.NoError(d.t, err)
				from = pod.Status.PodIP
			}
			for _, name := range names {
				line := regexp.MustCompile(`\b` + regexp.QuoteMeta(from) + `:\d+ - \d+ "A IN ` + regexp.QuoteMeta(name))
				assert.Eventually(d.t, func() bool { return line.MatchString(d.cacheLog(client)) }, waitTimeout,
					200*time.Millisecond, "%s has asked %s for %s at the cache of its node", client, server, name)
			}
		}
	}
	for _, client := range dnsClients {
		out, err := d.kubectlExec(client, "getent", "ahostsv4", "kubernetes.default.svc.cluster.local")
		assert.NoError(d.t, err)
		assert.Contains(d.t, out, "10.96.0.1 ", "with the resolver of the C library")
	}
}

// cacheLog returns the log of the cache on a client's node.
func (d *dnsCache) cacheLog(client string) string {
	node := strings.Split(client, "-")[1]
	pods, err := d.client.CoreV1().Pods(metav1.NamespaceSystem).List(d.t.Context(), metav1.ListOptions{
		LabelSelector: "k8s-app=node-local-dns", FieldSelector: "spec.nodeName=" + node})
	if err != nil || len(pods.Items) != 1 {
		return ""
	}
	log, err := d.client.CoreV1().Pods(metav1.NamespaceSystem).GetLogs(pods.Items[0].Name,
		&corev1.PodLogOptions{Container: "node-cache"}).DoRaw(d.t.Context())
	if err != nil {
		return ""
	}
	return string(log)
}
