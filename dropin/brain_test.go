package dropin

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"

	ipvsdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/ipvs/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// testBrain is a brain.Server, and a cluster that it knows.
type testBrain struct {
	objects []runtime.Object
	changes chan watch.Change
	target  string
	metrics prometheus.Registerer
	noNodes bool // it does not say that it delivers Nodes
}

// DeliversNodes reports whether clients are told what the brain knows of other nodes.
func (b *testBrain) DeliversNodes() bool { return !b.noNodes }

// Run implements watch.Source.
func (b *testBrain) Run(ctx context.Context, _ string, h watch.Handler) error {
	for _, o := range b.objects {
		h.Update(watch.Change{Object: o.(metav1.Object)})
	}
	h.Synced()
	for {
		select {
		case c := <-b.changes:
			h.Update(c)
		case <-ctx.Done():
			return nil
		}
	}
}

// newBrain returns a brain that does not run yet, on a Unix socket.
func newBrain(t *testing.T, objects ...runtime.Object) *testBrain {
	socket := filepath.Join(testkit.SocketDir(t), "brain.sock")
	if goruntime.GOOS == "windows" {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Skip("there are no Unix sockets here, as under Wine 8: ", err)
		}
		require.NoError(t, l.Close())
	}
	target := "unix://" + socket
	return &testBrain{objects: objects, changes: make(chan watch.Change), target: target}
}

// start runs the brain until the test ends, or stop is called.
func (b *testBrain) start(t *testing.T, opts brain.ServeOptions) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	server, err := brain.New(ctx, brain.Options{Source: b, Metrics: b.metrics})
	require.NoError(t, err)
	listener, err := brain.Listen(ctx, b.target, 0)
	require.NoError(t, err)
	if listener.Addr().Network() == "tcp" {
		b.target = listener.Addr().String()
	}
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, server.Run(ctx)) })
	wg.Go(func() { assert.NoError(t, server.Serve(ctx, listener, opts)) })
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// newBrainRig is a machine without an API server.
func newBrainRig(t *testing.T) *rig {
	r := newRig(t)
	r.newClient = func(componentbasev1alpha1.ClientConnectionConfiguration, string) (kubernetes.Interface, error) {
		return nil, errors.New("there is no API server")
	}
	return r
}

// In all modes the state can come from a brain, and then nothing is asked of an API server.
func TestTheStateComesFromABrain(t *testing.T) {
	needModesOfLinux(t)
	for mode, dump := range map[string]func(*rig) string{
		"nftables": func(r *rig) string { return r.nft.Dump(tableIPv4) },
		"iptables": func(r *rig) string { return r.iptables[0].Dump() },
		"ipvs":     func(r *rig) string { return r.machine.ipvs.(*ipvsdataplane.Fake).Dump() },
	} {
		t.Run(mode, func(t *testing.T) {
			b := newBrain(t, cluster()...)
			b.start(t, brain.ServeOptions{})
			r := newBrainRig(t)
			stop := r.start(t, "--server="+b.target, "--proxy-mode="+mode, "--cluster-cidr=10.244.0.0/16",
				"--iptables-min-sync-period=0", "--ipvs-min-sync-period=0")
			has := func(text string) func() bool { return func() bool { return strings.Contains(dump(r), text) } }
			require.Eventually(t, has("10.244.1.5"), time.Minute, time.Millisecond)
			moved := kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.6").OnNode("n1").Build()
			b.changes <- watch.Change{Object: moved}
			require.Eventually(t, has("10.244.1.6"), time.Minute, time.Millisecond)
			r.waitLogged(t, `"primaryIP"="192.0.2.1"`) // the brain knows the node
			r.waitLogged(t, `"reason"="Starting"`)     // Events are in the log
			require.NoError(t, stop())
			assert.Contains(t, dump(r), "10.244.1.6", "it stays")
		})
	}
}

// A node that serves fewer families than its kernel supports learns so from the brain, and asks for the state once.
func TestTheStateIsFetchedOnce(t *testing.T) {
	needModesOfLinux(t)
	registry := prometheus.NewRegistry()
	b := newBrain(t, cluster()...)
	b.metrics = registry
	b.start(t, brain.ServeOptions{})
	r := newBrainRig(t)
	stop := r.start(t, "--server="+b.target, "--config="+writeFile(t, `apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
mode: nftables
ipFamilyPolicy: SingleStack
detectLocal: {clusterCIDRs: [10.244.0.0/16]}
`))
	require.Eventually(t, func() bool { return strings.Contains(r.nft.Dump(tableIPv4), "10.244.1.5") }, time.Minute,
		time.Millisecond)
	assert.Contains(t, r.logged(), `"families"="[IPv4]"`)
	assert.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP kubeproxy_remote_batches_total Batches sent to clients, by kind
# TYPE kubeproxy_remote_batches_total counter
kubeproxy_remote_batches_total{kind="diff"} 0
kubeproxy_remote_batches_total{kind="reset"} 1
kubeproxy_remote_batches_total{kind="resumed"} 1
`), "kubeproxy_remote_batches_total"))
	moved := kube.EndpointSlice("default/web").Port("http", 8080).Endpoint("10.244.1.6").OnNode("n1").Build()
	b.changes <- watch.Change{Object: moved}
	require.Eventually(t, func() bool { return strings.Contains(r.nft.Dump(tableIPv4), "10.244.1.6") }, time.Minute,
		time.Millisecond)
	require.NoError(t, stop())
	assert.Empty(t, r.nft.Dump(tableIPv6))
}

// Before a brain is reachable nothing is known and nothing is changed; when it goes, the applied rules stay. The health
// endpoint reports both.
func TestHealthSaysSinceWhenThereIsNoBrain(t *testing.T) {
	b := newBrain(t, cluster()...)
	r := newBrainRig(t)
	r.start(t, append(arguments, "--server="+b.target)...)
	health := r.url(t, "0.0.0.0:10256")
	code, body := get(t, health+"/livez")
	assert.Equal(t, http.StatusOK, code, "a restart would not help")
	assert.Contains(t, body, `"disconnectedSince"`)
	code, _ = get(t, health+"/healthz")
	assert.Equal(t, http.StatusServiceUnavailable, code, "no traffic for a node without rules")
	assert.Zero(t, r.nft.Applied())

	stop := b.start(t, brain.ServeOptions{})
	r.waitServed(t)
	disconnected := func(want bool) func() bool {
		return func() bool {
			code, body := get(t, health+"/healthz")
			return code == http.StatusOK && strings.Contains(body, `"disconnectedSince"`) == want
		}
	}
	require.Eventually(t, disconnected(false), time.Minute, time.Millisecond)
	stop()
	require.Eventually(t, disconnected(true), time.Minute, time.Millisecond)
	r.waitServed(t)
	b.start(t, brain.ServeOptions{})
	require.Eventually(t, disconnected(false), time.Minute, time.Millisecond)
}

// The IPs of the node decide which families are served, as they do with an API server; they may come late.
func TestTheBrainKnowsTheNodesIPs(t *testing.T) {
	needModesOfLinux(t)
	b := newBrain(t, cluster()[1:]...)
	b.start(t, brain.ServeOptions{})
	r := newBrainRig(t)
	stop := r.start(t, "--server="+b.target, "--config="+writeFile(t, `apiVersion: kubeproxy.config.k8s.io/v1alpha2
kind: KubeProxyConfiguration
mode: nftables
minSyncPeriod: 0s
ipFamilyPolicy: SingleStack
clientConnection: {kubeconfig: /nowhere}
`))
	b.changes <- watch.Change{Object: kube.Node("n1").InternalIP("2001:db8::1").Build()}
	r.waitFor(t, tableIPv6, contains("service-ips"))
	require.NoError(t, stop())
	assert.Empty(t, r.nft.Dump(tableIPv4))
	assert.Contains(t, r.logged(),
		"clientConnection.kubeconfig: accepted, but has no effect: the state comes from --server")
}

// Over TCP the node is the one that its certificate names, and the certificate can be renewed.
func TestABrainOverTLS(t *testing.T) {
	dir := t.TempDir()
	ca := testkit.NewAuthority(t, dir)
	server := ca.Server(t, "server", net.IPv4(127, 0, 0, 1))
	ca.Client(t, "node", "system:node:another")
	b := newBrain(t, cluster()...)
	b.target = "127.0.0.1:0"
	b.start(t, brain.ServeOptions{TLS: &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: ca.Pool}})
	r := newBrainRig(t)
	stop := r.start(t, append(arguments, "--server="+b.target, "--ca-file="+filepath.Join(dir, "ca.crt"),
		"--tls-cert-file="+filepath.Join(dir, "node.crt"), "--tls-private-key-file="+filepath.Join(dir, "node.key"))...)
	r.waitLogged(t, `the certificate is for node \"another\", not \"n1\"`)
	ca.Client(t, "node", "system:node:n1")
	r.waitServed(t)
	require.NoError(t, stop())
}

func TestWrongFlagsOfABrainAreRefused(t *testing.T) {
	for want, args := range map[string][]string{
		`target "brain.kube-system:10270" is not ADDRESS:PORT`:       {"--server=brain.kube-system:10270"},
		"--server: invalid options: neither TLS nor Insecure is set": {"--server=192.0.2.9:10270"},
		"--tls-cert-file, --tls-private-key-file and --ca-file: must be given together": {"--server=192.0.2.9:1",
			"--ca-file=/x"},
		"--ca-file: certificate: open /nowhere": {
			"--server=192.0.2.9:1", "--ca-file=/x", "--tls-cert-file=/nowhere", "--tls-private-key-file=/nowhere"},
		"AllowServiceExternalIPs=false is set on the brain": {
			"--server=unix:///x", "--feature-gates=AllowServiceExternalIPs=false"},
		"--tls-cert-file needs --server":                   {"--tls-cert-file=/x"},
		"--insecure needs --server":                        {"--insecure"},
		"--server-state-file needs --server":               {"--server-state-file=/x"},
		"--server-state-max-age needs --server-state-file": {"--server=unix:///x", "--server-state-max-age=1h"},
		"keep: durations must not be negative": {
			"--server=unix:///x", "--server-state-file=/x", "--server-state-max-age=-1h"},
		`keep: the file "x" is not an absolute path`: {"--server=unix:///x", "--server-state-file=x"},
	} {
		assert.ErrorContains(t, newBrainRig(t).run(args...), want)
	}
}

func TestABrainIsNotKeptInAConfigurationFile(t *testing.T) {
	r := newBrainRig(t)
	require.NoError(t, r.run("--server=unix:///x", "--write-config-to="+filepath.Join(t.TempDir(), "written.yaml")))
	assert.Contains(t, r.logged(), "--server: is dropped: pass this flag in addition to the configuration file")
}
