package e2e_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
)

const brainImage = "registry.example/kube-proxy-lib-brain:test"

// certificatesOfNodes is where the nodes' proxies have their certificates here: /etc is that of the machine.
const certificatesOfNodes = "/var/lib/kube-proxy-lib-tls"

// TestTheManifestsOfTheBrain applies the two manifests, of the brain with its two replicas and of the nodes' proxies.
// While pods are replaced, it ends one replica after the other, and then both for a while. Clients lose no connection,
// and after each of these steps the nodes get the changes.
//
// It runs where KPL_CLUSTER=1 asks for it: what it needs takes long to build.
func TestTheManifestsOfTheBrain(t *testing.T) {
	options := e2e.Options{Programs: needCluster(t), Nodes: 3, Dir: filepath.Join(t.TempDir(), "cluster")}
	folder := cluster.Build(t, "kube-proxy", "brain")
	archive := filepath.Join(t.TempDir(), "images.tar")
	require.NoError(t, e2e.WriteArchive(options.Root(), archive, []e2e.Image{
		{Name: ourImage, Entrypoint: []string{"/kube-proxy"},
			Programs: map[string]string{"/kube-proxy": filepath.Join(folder, "kube-proxy")}},
		{Name: brainImage, Entrypoint: []string{"/brain"},
			Programs: map[string]string{"/brain": filepath.Join(folder, "brain")}},
	}))
	r := newRecipe(t, options, archive, folder)
	r.certificates(options.Dir)
	host, port, err := net.SplitHostPort(strings.TrimPrefix(r.server(), "https://"))
	require.NoError(t, err)
	fill := strings.NewReplacer("registry.example/kube-proxy-lib:latest", ourImage,
		"registry.example/kube-proxy-lib-brain:latest", brainImage, "192.0.2.10", r.address("n1"), "192.0.2.11",
		r.address("n2"), "api.example", host, `"6443"`, `"`+port+`"`, "[10.244.0.0/16]", "[10.244.0.0/16, 'fd00:244::/48']",
		"/etc/kube-proxy-lib", certificatesOfNodes)
	apply := func(path string) {
		text, err := os.ReadFile(filepath.Join("../../../cmd", path))
		require.NoError(t, err)
		file := filepath.Join(r.dir, "manifest.yaml")
		require.NoError(t, os.WriteFile(file, []byte(fill.Replace(string(text))), 0o644))
		r.shell("kubectl apply -f " + file)
	}
	r.shell("kubectl label nodes n1 n2 node-role.kubernetes.io/control-plane=")
	apply("brain/manifest.yaml")
	r.shell("kubectl -n kube-system rollout status deployment brain --timeout=5m")
	apply("kube-proxy/deploy/brain/manifest.yaml")
	r.shell("kubectl label nodes --all service-proxy=kube-proxy-lib-node")
	for _, node := range []string{"n1", "n2", "n3"} {
		r.awaitProxy(node, "kube-proxy-lib-node")
	}
	r.shell("kubectl -n kube-system rollout status deployment coredns --timeout=5m")
	r.startTraffic()

	for _, node := range []string{"n1", "n2"} {
		ended := r.shell("kubectl -n kube-system delete pod --selector app=brain --field-selector spec.nodeName=" + node +
			" --force --grace-period=0 2>&1")
		require.Contains(t, ended, "deleted")
		r.moveAll()
		r.shell("kubectl -n kube-system rollout status deployment brain --timeout=5m")
	}
	r.shell("kubectl -n kube-system scale deployment brain --replicas=0")
	r.shell("kubectl -n kube-system wait --for=delete pod --selector app=brain --timeout=5m")
	r.trafficGoesOn()
	r.shell("kubectl -n kube-system scale deployment brain --replicas=2")
	r.shell("kubectl -n kube-system rollout status deployment brain --timeout=5m")
	r.moveAll()
	r.noneWasLost()
}

// certificates creates the certificates of the brain and of each node, where the manifests expect them.
func (r *recipe) certificates(clusterDir string) {
	dir := r.t.TempDir()
	ca := testkit.NewAuthority(r.t, dir)
	ca.Server(r.t, "server", net.ParseIP(r.address("n1")), net.ParseIP(r.address("n2")))
	r.shell("kubectl -n kube-system create secret generic brain-tls --from-file=tls.crt=" + dir + "/server.crt" +
		" --from-file=tls.key=" + dir + "/server.key --from-file=ca.crt=" + dir + "/ca.crt")
	for _, node := range []string{"n1", "n2", "n3"} {
		ca.Client(r.t, "tls", "system:node:"+node)
		at := filepath.Join(clusterDir, "nodes", node, certificatesOfNodes)
		require.NoError(r.t, os.Mkdir(at, 0o755))
		for _, name := range []string{"tls.crt", "tls.key", "ca.crt"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			require.NoError(r.t, err)
			require.NoError(r.t, os.WriteFile(filepath.Join(at, name), b, 0o600))
		}
	}
}

// moveAll replaces all pods of a Service, one after the other. The old ones serve until their time is over; that the
// new ones are known shows in the clients' answers.
func (r *recipe) moveAll() {
	r.t.Helper()
	r.shell("kubectl rollout restart deployment moved")
	r.shell("kubectl rollout status deployment moved --timeout=5m")
	require.Eventually(r.t, func() bool {
		pods, err := r.client.CoreV1().Pods("default").List(r.t.Context(), metav1.ListOptions{LabelSelector: "app=moved"})
		return err == nil && len(pods.Items) == 4
	}, waitTimeout, time.Second, "the old ones are gone")
	r.trafficGoesOn()
}
