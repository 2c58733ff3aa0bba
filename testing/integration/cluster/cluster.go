package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"sigs.k8s.io/kube-proxy-lib/testing/need"
)

// Options configures a Cluster.
type Options struct {
	// ServiceCIDRs are the ranges of cluster IPs. Default: "10.96.0.0/12,fd00:96::/108".
	ServiceCIDRs string
	// ControllerManager starts kube-controller-manager, with the controllers of slices, deployments, DaemonSets and
	// service accounts.
	ControllerManager bool
	// Address makes it a control plane for real nodes: an address of this machine at which they and their pods reach the
	// API server, which listens on all addresses. kube-controller-manager runs all controllers that need no cloud, and
	// kube-scheduler runs too. Nodes get podCIDRs.
	Address string
	// FeatureGates are gates of all programs, for example "A=true,B=false". Default: "".
	FeatureGates string
}

// Cluster is a running control plane. It stops at the end of the test.
type Cluster struct {
	// Version is the Kubernetes version, for example "v1.37.2".
	Version string
	// Config is a client configuration with all rights and no rate limit. Copy it before changing it.
	Config *rest.Config
	// Client is a client with this Config.
	Client kubernetes.Interface

	t         testing.TB
	dir       string // certificates, kubeconfigs, logs, etcd's data
	options   Options
	etcd      string // the address of etcd
	etcdPeer  string // the same, for other members, of which there are none
	port      int    // of the API server
	store     *program
	apiserver *program
}

const adminToken = "admin-of-a-test"

// serverName is in the API server's certificate, whatever address the server listens on.
const serverName = "kubernetes.default.svc"

// Start starts a control plane that runs until the end of the test, and returns when it is ready.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	if o.ServiceCIDRs == "" {
		o.ServiceCIDRs = "10.96.0.0/12,fd00:96::/108"
	}
	c := &Cluster{Version: Version(t), t: t, dir: t.TempDir(), options: o, port: freePort(t)}
	_, _, err := keyutil.LoadOrGenerateKeyFile(c.file("sa.key"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(c.file("tokens.csv"), []byte(adminToken+",admin,1,system:masters\n"), 0o600))

	client, peer := freePort(t), freePort(t)
	c.etcd = fmt.Sprintf("http://127.0.0.1:%d", client)
	c.etcdPeer = fmt.Sprintf("http://127.0.0.1:%d", peer)
	c.startEtcd()

	c.Config = &rest.Config{Host: "https://" + c.address(), BearerToken: adminToken, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.file("apiserver.crt")}}
	if o.Address != "" {
		c.Config.ServerName = serverName
	}
	c.StartAPIServer()
	c.Client, err = kubernetes.NewForConfig(c.Config)
	require.NoError(t, err)
	if o.ControllerManager || o.Address != "" {
		c.startControllerManager()
	}
	if o.Address != "" {
		run(t, c.dir, "kube-scheduler", Program(t, "kube-scheduler"),
			"--kubeconfig="+c.Kubeconfig("kube-scheduler", adminToken, c.port), "--leader-elect=false",
			"--secure-port=0", "--kube-api-qps=1000", "--kube-api-burst=1000", "--feature-gates="+o.FeatureGates)
	}
	return c
}

func (c *Cluster) startEtcd() {
	c.t.Helper()
	// The data need not survive a crash of the machine.
	c.store = run(c.t, c.dir, "etcd", Program(c.t, "etcd"), "--data-dir="+c.file("etcd"), "--unsafe-no-fsync",
		"--log-level=warn", "--listen-client-urls="+c.etcd, "--advertise-client-urls="+c.etcd,
		"--listen-peer-urls="+c.etcdPeer, "--initial-advertise-peer-urls="+c.etcdPeer,
		"--initial-cluster=default="+c.etcdPeer)
}

func (c *Cluster) startControllerManager() {
	controllers := []string{"serviceaccount-controller", "endpointslice-controller",
		"endpointslice-mirroring-controller", "deployment-controller", "replicaset-controller", "daemonset-controller"}
	if c.options.Address != "" {
		controllers = []string{"*"}
	}
	run(c.t, c.dir, "kube-controller-manager", Program(c.t, "kube-controller-manager"),
		"--kubeconfig="+c.Kubeconfig("kube-controller-manager", adminToken, c.port), "--leader-elect=false",
		"--secure-port=0", "--use-service-account-credentials=false",
		"--service-account-private-key-file="+c.file("sa.key"), "--root-ca-file="+c.file("apiserver.crt"),
		"--kube-api-qps=1000", "--kube-api-burst=1000", "--concurrent-service-endpoint-syncs=10",
		"--feature-gates="+c.options.FeatureGates, "--controllers="+strings.Join(controllers, ","))
}

// StartAPIServer restarts the API server after StopAPIServer, at the same address, and returns when it is ready.
func (c *Cluster) StartAPIServer() {
	c.t.Helper()
	require.Nil(c.t, c.apiserver, "the API server is running")
	listen := []string{"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // otherwise it keeps logging that a loopback address cannot be an endpoint
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,Priority"}
	if c.options.Address != "" {
		listen = []string{"--bind-address=::", "--advertise-address=" + c.options.Address,
			"--kubelet-preferred-address-types=InternalIP"}
	}
	c.apiserver = run(c.t, c.dir, "kube-apiserver", Program(c.t, "kube-apiserver"), append(listen,
		"--etcd-servers="+c.etcd, "--etcd-compaction-interval=0", "--feature-gates="+c.options.FeatureGates,
		"--secure-port="+strconv.Itoa(c.port), "--cert-dir="+c.dir, "--token-auth-file="+c.file("tokens.csv"),
		"--authorization-mode=RBAC", "--service-cluster-ip-range="+c.options.ServiceCIDRs, "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-signing-key-file="+c.file("sa.key"),
		"--service-account-key-file="+c.file("sa.key"), "--shutdown-delay-duration=0s",
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000",
		"--event-ttl=1h")...)
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Minute)
	defer cancel()
	for {
		if c.ready(ctx) {
			return
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("kube-apiserver is not ready; its log is at the end of this:\n%s", c.apiserver.tail())
		case <-c.apiserver.ended:
			c.t.Fatalf("kube-apiserver ended:\n%s", c.apiserver.tail())
		case <-time.After(100 * time.Millisecond): // it does not signal readiness
		}
	}
}

func (c *Cluster) ready(ctx context.Context) bool {
	client, err := kubernetes.NewForConfig(c.Config) // the certificate may not exist yet
	if err != nil {
		return false
	}
	body, err := client.RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err == nil && string(body) == "ok"
}

// StopAPIServer kills the API server, so clients get no notice.
func (c *Cluster) StopAPIServer() {
	c.t.Helper()
	c.apiserver.kill()
	c.apiserver = nil
}

// Backup copies what etcd has, for Restore. The API server and etcd are killed meanwhile.
func (c *Cluster) Backup() (backup string) {
	c.t.Helper()
	backup = c.t.TempDir()
	c.whileStopped(func() error { return os.CopyFS(backup, os.DirFS(c.file("etcd"))) })
	return backup
}

// Restore kills the API server and etcd, and starts them with what etcd had at a Backup. So resourceVersions are lower
// than before.
func (c *Cluster) Restore(backup string) {
	c.t.Helper()
	c.whileStopped(func() error {
		return errors.Join(os.RemoveAll(c.file("etcd")), os.CopyFS(c.file("etcd"), os.DirFS(backup)))
	})
}

func (c *Cluster) whileStopped(f func() error) {
	c.t.Helper()
	c.StopAPIServer()
	c.store.kill()
	require.NoError(c.t, f())
	c.startEtcd()
	c.StartAPIServer()
}

// RenewCA kills the API server and starts it with a certificate of another CA, whose certificate it returns. Config and
// Client trust it; clients and kubeconfigs made before do not.
func (c *Cluster) RenewCA() (ca []byte) {
	c.t.Helper()
	c.StopAPIServer()
	ca, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, []string{serverName})
	require.NoError(c.t, err)
	require.NoError(c.t, os.WriteFile(c.file("apiserver.crt"), ca, 0o600))
	require.NoError(c.t, os.WriteFile(c.file("apiserver.key"), key, 0o600))
	c.Config = rest.CopyConfig(c.Config)
	c.Config.CAFile, c.Config.CAData = "", ca // client-go reads a file again after five minutes
	c.StartAPIServer()
	c.Client, err = kubernetes.NewForConfig(c.Config)
	require.NoError(c.t, err)
	return ca
}

// Compact makes etcd forget earlier revisions, so that watches that resume from them have to list again. The API
// server's watch cache keeps them until it is restarted.
func (c *Cluster) Compact() {
	c.t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.etcd}, DialTimeout: 10 * time.Second,
		Context: c.t.Context()})
	require.NoError(c.t, err)
	defer client.Close()
	r, err := client.Get(c.t.Context(), "nothing")
	require.NoError(c.t, err)
	_, err = client.Compact(c.t.Context(), r.Header.Revision, clientv3.WithCompactPhysical())
	require.NoError(c.t, err)
}

// Kubeconfig writes a kubeconfig file with a bearer token, for an API server at this port of 127.0.0.1: that of Port,
// or of a relay.
func (c *Cluster) Kubeconfig(name, token string, port int) string {
	c.t.Helper()
	return c.kubeconfigFor(name, token, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// kubeconfigFor is like Kubeconfig, for an API server at this host and port.
func (c *Cluster) kubeconfigFor(name, token, address string) string {
	c.t.Helper()
	ca, err := os.ReadFile(c.file("apiserver.crt"))
	require.NoError(c.t, err)
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: "https://" + address,
		TLSServerName: c.Config.ServerName, CertificateAuthorityData: ca}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: name}
	config.CurrentContext = "test"
	path := c.file(name + ".kubeconfig")
	require.NoError(c.t, clientcmd.WriteToFile(*config, path))
	return path
}

// AdminKubeconfig writes a kubeconfig file with all rights; see Kubeconfig.
func (c *Cluster) AdminKubeconfig(port int) string {
	c.t.Helper()
	return c.Kubeconfig("admin", adminToken, port)
}

// AdminKubeconfigFor is like AdminKubeconfig, for an API server at this host and port.
func (c *Cluster) AdminKubeconfigFor(name, address string) string {
	c.t.Helper()
	return c.kubeconfigFor(name, adminToken, address)
}

// Port returns the API server's port on 127.0.0.1.
func (c *Cluster) Port() int { return c.port }

func (c *Cluster) file(name string) string { return filepath.Join(c.dir, name) }

func (c *Cluster) address() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(c.port)) }

// givenPorts are the ports that freePort has returned. They are not open all the time, so the kernel may offer one
// again.
var givenPorts sync.Map

// freePort returns a port that is free now, and never the same port twice.
func freePort(t testing.TB) int {
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		require.NoError(t, l.Close())
		if _, given := givenPorts.LoadOrStore(port, true); !given {
			return port
		}
	}
}

// Version returns the Kubernetes version to test with.
func Version(t testing.TB) string {
	t.Helper()
	if v := os.Getenv("KPL_KUBERNETES"); v != "" {
		return v
	}
	return versions(t)[0]
}

// Program returns the path of an upstream program: kube-apiserver, kube-controller-manager, kube-proxy, kubectl or
// etcd. A version without its own etcd uses that of the first version in kubernetes-versions.
func Program(t testing.TB, name string) string {
	t.Helper()
	path := filepath.Join(root(t), "bin", Version(t), name)
	_, err := os.Stat(path)
	if err != nil && name == "etcd" {
		path = filepath.Join(root(t), "bin", versions(t)[0], name)
		_, err = os.Stat(path)
	}
	need.That(t, err == nil, path+" (run testing/integration/build)")
	return path
}
