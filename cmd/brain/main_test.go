package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const cluster = "../../examples/mock/cluster"

// start runs the program until the test ends. It returns the addresses for clients and of --status.
func start(t *testing.T, args ...string) (clients, status string) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	r, w := io.Pipe()
	go func() {
		err := run(ctx, append(args, "--status", "127.0.0.1:0"), w)
		w.Close()
		ended <- err
	}()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-ended)
	})
	lines := bufio.NewScanner(r)
	require.True(t, lines.Scan())
	clients = strings.TrimPrefix(lines.Text(), "clients: ")
	require.True(t, lines.Scan())
	return clients, strings.TrimSuffix(strings.TrimPrefix(lines.Text(), "status: "), "/status")
}

// services returns the services that a node gets first.
func services(t *testing.T, opts remote.Options) []model.ServiceName {
	ctx, cancel := context.WithCancel(t.Context())
	var names []model.ServiceName
	opts.State = localstate.Options{NodeName: "node-1"}
	feed, err := remote.NewFeed(opts)
	require.NoError(t, err)
	first := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		for entry := range s.Services() {
			names = append(names, entry.Service.Name)
		}
		cancel()
		return nil
	})
	require.NoError(t, kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: first}))
	return names
}

func get(t *testing.T, url string) (int, string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get(url)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestNodesGetTheirStateOnASocket(t *testing.T) {
	target := "unix://" + filepath.Join(testkit.SocketDir(t), "brain.sock")
	socket, status := start(t, "--file", cluster, "--listen", target)
	assert.Equal(t, target, "unix://"+socket)
	assert.Len(t, services(t, remote.Options{Targets: []string{target}}), 5)
	code, _ := get(t, status+"/readyz")
	assert.Equal(t, http.StatusOK, code, "it has told a node")
	_, text := get(t, status+"/status")
	assert.Contains(t, text, `"synced":true`)
	_, text = get(t, status+"/metrics")
	assert.Contains(t, text, "kubeproxy_remote_revision 1")
}

func TestExternalIPsCanBeTurnedOff(t *testing.T) {
	for _, args := range [][]string{nil, {"--service-external-ips=false"}} {
		o, err := parse(append(args, "--listen", "unix:///x"))
		require.NoError(t, err)
		assert.Equal(t, len(args) > 0, o.allNodes().NoExternalIPs)
	}
}

// A brain that does not know the cluster is alive, and not ready.
func TestItIsNotReadyBeforeItKnowsTheCluster(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // an API server that never answers
	require.NoError(t, err)
	defer silent.Close()
	// A connection that was being made when the program ended is kept for later requests.
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c,
contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}],
clusters: [{name: c, cluster: {server: "http://`+silent.Addr().String()+`"}}]}`), 0o600))
	_, status := start(t, "--kubeconfig", kubeconfig, "--listen",
		"unix://"+filepath.Join(testkit.SocketDir(t), "brain.sock"))
	code, text := get(t, status+"/readyz")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.Contains(t, text, "not everything has been listed yet")
	code, _ = get(t, status+"/livez")
	assert.Equal(t, http.StatusOK, code)
}

// Over TCP a node presents a certificate like a kubelet's; clients without one are refused.
func TestNodesGetTheirStateOverTLS(t *testing.T) {
	dir := t.TempDir()
	authority := testkit.NewAuthority(t, dir)
	authority.Server(t, "server", net.IPv4(127, 0, 0, 1))
	address, _ := start(t, "--file", cluster, "--listen", "127.0.0.1:0", "--tls-cert-file",
		filepath.Join(dir, "server.crt"),
		"--tls-private-key-file", filepath.Join(dir, "server.key"), "--client-ca-file", filepath.Join(dir, "ca.crt"),
		"--viewers", "alice,bob")

	certificate := authority.Client(t, "node", "system:node:node-1")
	config := &tls.Config{RootCAs: authority.Pool, Certificates: []tls.Certificate{certificate}}
	assert.Len(t, services(t, remote.Options{Targets: []string{address}, TLS: config}), 5)

	// A person sees what any node gets.
	bob := &tls.Config{RootCAs: authority.Pool, Certificates: []tls.Certificate{authority.Client(t, "bob", "bob")}}
	assert.Len(t, services(t, remote.Options{Targets: []string{address}, TLS: bob,
		State: localstate.Options{NodeName: "node-2"}}), 5)

	// An authority that comes later counts from then on.
	other := testkit.NewAuthority(t, t.TempDir())
	ca := filepath.Join(dir, "ca.crt")
	text, err := os.ReadFile(ca)
	require.NoError(t, err)
	more := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: other.Certificate.Raw})
	require.NoError(t, os.WriteFile(ca, append(text, more...), 0o600))
	config.Certificates = []tls.Certificate{other.Client(t, "node", "system:node:node-1")}
	assert.Len(t, services(t, remote.Options{Targets: []string{address}, TLS: config}), 5)
}

// onePipe is a listener with one connection.
type onePipe struct {
	net.Listener
	connection chan net.Conn
}

func (p onePipe) Accept() (net.Conn, error) {
	if c, ok := <-p.connection; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p onePipe) Close() error { return nil }

// A client of --status that is slow, or does nothing at all, keeps its connection for a while only.
func TestConnectionsOfSlowClientsEnd(t *testing.T) {
	const get = "GET / HTTP/1.1\r\nHost: brain\r\n"
	for _, test := range []struct {
		name, request string
		reads         bool
		ends          time.Duration
	}{
		{name: "no request", reads: true, ends: requestTimeout},
		{name: "half a request", request: get, reads: true, ends: requestTimeout},
		{name: "a connection that is kept", request: get + "\r\n", reads: true, ends: idleTimeout},
		{name: "an answer that is not read", request: get + "\r\n", ends: answerTimeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := onePipe{connection: make(chan net.Conn, 1)}
				client, c := net.Pipe()
				defer client.Close()
				listener.connection <- c
				ended := make(chan time.Time, 1)
				begin := time.Now()
				srv := statusServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
				}))
				srv.ConnState = func(_ net.Conn, state http.ConnState) {
					if state == http.StateClosed {
						ended <- time.Now()
					}
				}
				go func() { _ = srv.Serve(listener) }()
				go func() {
					_, _ = io.WriteString(client, test.request)
					if test.reads {
						_, _ = io.Copy(io.Discard, client)
					}
				}()
				assert.InDelta(t, test.ends, (<-ended).Sub(begin), float64(time.Second))
				close(listener.connection)
			})
		})
	}
}

func TestWrongFlagsAreRefused(t *testing.T) {
	socket := "unix://" + filepath.Join(testkit.SocketDir(t), "brain.sock")
	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"nowhere to listen": {[]string{"--file", cluster}, "--listen is required"},
		"no source":         {[]string{"--listen", socket}, "--file and --kubeconfig"},
		"two sources": {[]string{"--listen", socket, "--file", cluster, "--in-cluster"},
			"--in-cluster cannot be used with"},
		"not in a cluster": {[]string{"--listen", socket, "--in-cluster"}, "--in-cluster"},
		"TCP without a certificate": {[]string{"--listen", "127.0.0.1:0", "--file", cluster},
			"--client-ca-file, or --insecure"},
		"no such certificate": {[]string{"--listen", "127.0.0.1:0", "--file", cluster, "--tls-cert-file", "nowhere",
			"--tls-private-key-file", "nowhere", "--client-ca-file", "nowhere"}, "--tls-cert-file"},
		"a status address": {[]string{"--listen", socket, "--file", cluster, "--status", "nowhere"}, "--status"},
		"an address twice": {[]string{"--listen", socket + "," + socket, "--file", cluster},
			"already listens there"},
		"an argument":         {[]string{"--listen", socket, "now"}, `unexpected argument "now"`},
		"a directory":         {[]string{"--listen", "unix:///nowhere/brain.sock", "--file", cluster}, "/nowhere"},
		"nothing at the path": {[]string{"--listen", socket, "--file", "nowhere"}, "nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.ErrorContains(t, run(t.Context(), tc.args, io.Discard), tc.want)
		})
	}
}

// The manifest has no unknown fields, and its parts refer to each other.
func TestTheManifest(t *testing.T) {
	data, err := os.ReadFile("manifest.yaml")
	require.NoError(t, err)
	var account corev1.ServiceAccount
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	var budget policyv1.PodDisruptionBudget
	var deployment appsv1.Deployment
	parts := []any{&account, &role, &binding, &budget, &deployment}
	documents := strings.Split(string(data), "\n---\n")
	require.Len(t, documents, len(parts))
	for i, part := range parts {
		require.NoError(t, yaml.UnmarshalStrict([]byte(documents[i]), part))
	}
	pod := deployment.Spec.Template
	assert.Equal(t, pod.Labels, deployment.Spec.Selector.MatchLabels)
	assert.Equal(t, pod.Labels, budget.Spec.Selector.MatchLabels)
	assert.Equal(t, account.Name, pod.Spec.ServiceAccountName)
	assert.Equal(t, account.Name, binding.Subjects[0].Name)
	assert.Equal(t, role.Name, binding.RoleRef.Name)
	assert.True(t, pod.Spec.HostNetwork)
	o, err := parse(pod.Spec.Containers[0].Args)
	assert.NoError(t, err)
	assert.Less(t, o.grace, time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second)
	for _, probe := range []*corev1.Probe{pod.Spec.Containers[0].ReadinessProbe, pod.Spec.Containers[0].LivenessProbe} {
		assert.Equal(t, "127.0.0.1", probe.HTTPGet.Host, "it is for this machine alone")
		assert.Contains(t, pod.Spec.Containers[0].Args, "--status="+net.JoinHostPort(probe.HTTPGet.Host,
			probe.HTTPGet.Port.String()))
	}
}

// A brain that grows ends alone: it does not take the API server on the same machine along. Nothing that the limits
// allow ends it in the cluster that the manifest is for, reckoned like docs/remote.md: 5,000 nodes, 100,000 endpoints,
// 10 in a service.
func TestTheManifestLimitsMemory(t *testing.T) {
	data, err := os.ReadFile("manifest.yaml")
	require.NoError(t, err)
	documents := strings.Split(string(data), "\n---\n")
	var deployment appsv1.Deployment
	require.NoError(t, yaml.UnmarshalStrict([]byte(documents[len(documents)-1]), &deployment))
	container := deployment.Spec.Template.Spec.Containers[0]
	limit := container.Resources.Limits.Memory().Value()
	require.NotZero(t, limit)
	assert.LessOrEqual(t, container.Resources.Requests.Memory().Value(), limit)
	n := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "GOMEMLIMIT" })
	require.GreaterOrEqual(t, n, 0)
	soft, err := resource.ParseQuantity(strings.TrimSuffix(container.Env[n].Value, "B"))
	require.NoError(t, err)
	assert.Less(t, soft.Value(), limit)

	o, err := parse(container.Args)
	require.NoError(t, err)
	const (
		process      = 170e6
		nodes        = 5000 * 65e3
		class        = 32e6 // TestAClassTakesLittleMemory of remote/brain
		withoutZone  = 8    // more classes than --classes
		leastKept    = 16 << 20
		harmful      = 34e6 // of a certificate
		certificates = 2
		strangers    = 70e6 // in handshakes
		others       = process + nodes + certificates*harmful + strangers
	)
	classes := o.classes + withoutZone
	assert.Less(t, int64(others+float64(classes)*(class+float64(max(o.keepBytes, leastKept)))), soft.Value())
	for _, file := range []string{"manifest.yaml", "../../docs/remote.md"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.True(t, strings.Contains(string(text), fmt.Sprint(classes, " classes")), file)
	}
}
