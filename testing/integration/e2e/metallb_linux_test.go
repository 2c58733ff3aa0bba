package e2e_test

import (
	_ "embed"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/e2e"
	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

//go:embed testdata/metallb.yaml
var metalLBManifest string

const metalLBImage = "registry.example/metallb:test"

// layer2Service is a Service whose addresses MetalLB announces.
type layer2Service struct {
	// Name is the Service's name, Policy its external traffic policy.
	Name, Policy string
	// Nodes are those of its endpoints.
	Nodes     []string
	addresses []string
}

// TestMetalLB runs MetalLB in layer-2 mode on nodes with cmd/kube-proxy. Its controller gives Services addresses, a
// speaker answers for them on the network that the nodes share, and a client there gets answers, in both families. When
// the node that announces a Service is cut off, another one takes over, until that node is back.
//
// It runs where KPL_CLUSTER=1 asks for it, after `testing/integration/e2e/build metallb`.
func TestMetalLB(t *testing.T) {
	options := e2e.Options{Programs: needCluster(t), Nodes: 3, Dir: filepath.Join(t.TempDir(), "cluster")}
	need.Program(t, "ip")
	files := map[string]string{}
	for _, name := range []string{"controller", "speaker"} {
		path := filepath.Join(options.Programs, "metallb-"+name)
		_, err := os.Stat(path)
		need.That(t, err == nil, path+" (run testing/integration/e2e/build metallb)")
		files["/"+name] = path
	}
	folder := cluster.Build(t, "kube-proxy")
	archive := filepath.Join(t.TempDir(), "images.tar")
	require.NoError(t, e2e.WriteArchive(options.Root(), archive, []e2e.Image{{Name: metalLBImage, Programs: files}}))
	r := newRecipe(t, options, archive, folder)
	services := []*layer2Service{{Name: "all", Policy: "Cluster", Nodes: []string{"n3"}},
		{Name: "local", Policy: "Local", Nodes: []string{"n1", "n2"}}}
	for _, mode := range []string{"iptables", "nftables"} {
		r.startProxy(filepath.Join(folder, "kube-proxy"), mode)
		if services[0].addresses == nil {
			r.startMetalLB(services)
		}
		for _, s := range services {
			t.Logf("mode %s, Service %s: announced by %v", mode, s.Name, r.awaitAnnouncers(s, nil))
		}
	}
	for _, s := range services {
		node := r.awaitAnnouncers(s, nil)[0]
		r.on("", "ip", "link", "set", "dev", node, "down")
		t.Logf("without %s, Service %s: announced by %v", node, s.Name,
			r.awaitAnnouncers(s, func(now string) bool { return now != node }))
		// The speakers find each other again, and the choice of one of them depends on their names alone.
		r.on("", "ip", "link", "set", "dev", node, "up")
		r.awaitAnnouncers(s, func(now string) bool { return now == node })
	}
}

// startMetalLB starts MetalLB and the Services, and notes their addresses.
func (r *recipe) startMetalLB(services []*layer2Service) {
	r.shell("kubectl apply -f " + filepath.Join(filepath.Dir(r.c.Options.Programs), "metallb"))
	r.shell("kubectl wait --for=condition=Established crd --all --timeout=5m")
	r.apply(metalLBManifest, map[string]any{"Image": metalLBImage, "Class": "example.com/metallb", "Services": services,
		"Agnhost": imageutils.GetE2EImage(imageutils.Agnhost)})
	r.shell("kubectl -n metallb-system rollout status deployment controller --timeout=5m")
	r.shell("kubectl -n metallb-system rollout status daemonset speaker --timeout=5m")
	r.shell("kubectl wait --for=condition=Ready pod --all --timeout=5m")
	for _, s := range services {
		r.shell("kubectl wait --for=jsonpath='{.status.loadBalancer.ingress[1]}' --timeout=5m service " + s.Name)
		o, err := r.client.CoreV1().Services("default").Get(r.t.Context(), s.Name, metav1.GetOptions{})
		require.NoError(r.t, err)
		for _, ingress := range o.Status.LoadBalancer.Ingress {
			s.addresses = append(s.addresses, ingress.IP)
		}
	}
}

var neighbour = regexp.MustCompile(`lladdr (\S+)`)

// awaitAnnouncers waits until a client outside gets an answer from each address of a Service, and each node that has
// said that an address is its own is right; nil: any. It returns these nodes.
func (r *recipe) awaitAnnouncers(s *layer2Service, right func(node string) bool) []string {
	r.t.Helper()
	names := map[string]string{}
	for _, node := range []string{"n1", "n2", "n3"} {
		names[strings.TrimSpace(r.on(node, "cat", "/sys/class/net/eth0/address"))] = node
	}
	var nodes []string
	var err error
	if !assert.Eventually(r.t, func() bool {
		nodes, err = r.announcers(s, names)
		return err == nil && (right == nil || !slices.ContainsFunc(nodes, func(n string) bool { return !right(n) }))
	}, waitTimeout, 200*time.Millisecond) {
		require.FailNow(r.t, "not announced", "Service %s, by %v at last: %v", s.Name, nodes, err)
	}
	return nodes
}

// announcers asks each address of a Service once, and returns the nodes that have said that the addresses are theirs.
func (r *recipe) announcers(s *layer2Service, names map[string]string) (nodes []string, err error) {
	for _, address := range s.addresses {
		said, err := r.try("", "curl", "--silent", "--show-error", "--fail", "--max-time", "5",
			"http://"+net.JoinHostPort(address, "80")+"/clientip")
		if err != nil {
			return nodes, err
		}
		source, _, err := net.SplitHostPort(said)
		if err != nil {
			return nodes, err
		}
		if outside := source == "172.31.0.1" || source == "fd00:31::1"; outside != (s.Policy == "Local") {
			return nodes, fmt.Errorf("%s: the endpoint sees %s", address, source)
		}
		entry, err := r.try("", "ip", "neigh", "show", "to", address, "dev", "nodes")
		if err != nil {
			return nodes, err
		}
		found := neighbour.FindStringSubmatch(entry)
		if found == nil || names[found[1]] == "" {
			return nodes, fmt.Errorf("%s is at no node: %q", address, entry)
		}
		nodes = append(nodes, names[found[1]])
	}
	return nodes, nil
}
