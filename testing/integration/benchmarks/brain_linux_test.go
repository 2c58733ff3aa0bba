package benchmarks

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
)

// envClients names the variable with the number of nodes that watch, instead of defaultClients.
const (
	envClients     = "KPL_CLIENTS"
	defaultClients = 500
	brainChanges   = 30 // single endpoints replaced, one after the other
)

// BenchmarkBrain measures what one changed endpoint costs, in bytes for each node and in processor time of the server:
// when each node watches EndpointSlices at the API server, as kube-proxy's informers do, and when cmd/brain does
// that for all of them. Both use TLS, with a connection for each node. A change ends when every node has received it.
//
//	KPL_CLIENTS=500 go test -run - -bench '^BenchmarkBrain$' -benchtime 1x ./benchmarks
func BenchmarkBrain(b *testing.B) {
	program := build(b, "cmd/brain")
	clients := defaultClients
	if text := os.Getenv(envClients); text != "" {
		var err error
		clients, err = strconv.Atoi(text)
		require.NoError(b, err)
	}
	for _, size := range []int{100, 10} {
		b.Run(fmt.Sprintf("slices-of-%d", size), func(b *testing.B) {
			f := newFleet(b, clients, size)
			for range b.N {
				f.compare(b, program)
			}
		})
	}
}

// fleet is an API server with objects, and many nodes.
type fleet struct {
	*objects
	cluster   *cluster.Cluster
	apiserver int // its process
	clients   int
	next      int // the service to be changed
}

func newFleet(b *testing.B, clients, size int) *fleet {
	c := cluster.Start(b, cluster.Options{})
	f := &fleet{objects: &objects{client: c.Client}, cluster: c, clients: clients}
	require.NoError(b, inParallel(clients, func(i int) error {
		labels := map[string]string{corev1.LabelTopologyZone: []string{"a", "b", "c"}[i%3]}
		_, err := c.Client.CoreV1().Nodes().Create(b.Context(),
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: f.node(i), Labels: labels}}, metav1.CreateOptions{})
		return err
	}))
	f.shape(b, 10000/size, size)
	var err error
	f.apiserver, err = childNamed(os.Getpid(), "kube-apiserver")
	require.NoError(b, err)
	return f
}

func (f *fleet) node(i int) string { return fmt.Sprintf("node-%d", i) }

// cost is what one change costs.
type cost struct {
	in, out        float64 // bytes for each node: to it and from it
	apiserver, own time.Duration
}

// compare measures the API server without watches, with one for each node, and with a brain for all nodes.
func (f *fleet) compare(b *testing.B, program string) {
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	idle := f.measure(b, &receivers{}, 0)

	watching, end := context.WithCancel(ctx)
	watches := &receivers{}
	f.watchAll(watching, b, watches)
	atAPIServer := f.measure(b, watches, 0)
	end()
	watches.readers.Wait()

	brain, stop := f.startBrain(b, program)
	following, end := context.WithCancel(ctx)
	nodes := &receivers{}
	brain.followAll(following, b, f, nodes)
	atBrain := f.measure(b, nodes, brain.pid)
	end()
	nodes.readers.Wait()
	stop()

	watchTime := atAPIServer.apiserver - idle.apiserver
	brainTime := atBrain.own + max(0, atBrain.apiserver-idle.apiserver)
	b.ReportMetric(0, "ns/op") // the sum of all says nothing
	for name, value := range map[string]float64{
		"watch-B/node": atAPIServer.in, "brain-B/node": atBrain.in, "brain-ack-B/node": atBrain.out,
		"B-ratio":  atAPIServer.in / atBrain.in,
		"watch-ms": watchTime.Seconds() * 1000, "brain-ms": brainTime.Seconds() * 1000,
		"write-ms": idle.apiserver.Seconds() * 1000, "CPU-ratio": watchTime.Seconds() / brainTime.Seconds(),
	} {
		b.ReportMetric(value, name)
	}
}

// receivers receive changes, and count them and their bytes.
type receivers struct {
	told    atomic.Int64 // changes, summed over all nodes
	in, out atomic.Int64
	readers sync.WaitGroup
	nodes   int64

	mu  sync.Mutex
	err error // the first one
}

func (a *receivers) fail(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.err == nil {
		a.err = err
	}
}

func (a *receivers) failed() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// measure replaces single endpoints, each when all nodes have received the one before.
func (f *fleet) measure(b *testing.B, a *receivers, pid int) cost {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
	defer cancel()
	rest := controlPlane{f.apiserver}
	_, err := rest.settle(restLimit)
	require.NoError(b, err)
	used := func(pid int) time.Duration {
		if pid == 0 {
			return 0
		}
		t, err := processorTime(pid)
		require.NoError(b, err)
		return t
	}
	told, in, out := a.told.Load(), a.in.Load(), a.out.Load()
	apiserver, own := used(f.apiserver), used(pid)
	for i := range int64(brainChanges) {
		replace, _ := f.replace(ctx, f.next%len(f.slices))
		f.next++
		require.NoError(b, replace())
		for a.told.Load() < told+(i+1)*a.nodes {
			require.NoError(b, errors.Join(a.failed(), ctx.Err()))
			time.Sleep(time.Millisecond)
		}
	}
	_, err = rest.settle(restLimit) // includes what is done in the background
	require.NoError(b, err)
	n := float64(max(a.nodes, 1) * brainChanges)
	return cost{in: float64(a.in.Load()-in) / n, out: float64(a.out.Load()-out) / n,
		apiserver: (used(f.apiserver) - apiserver) / brainChanges, own: (used(pid) - own) / brainChanges}
}

// countedConn counts the bytes of a connection, those of TLS included.
type countedConn struct {
	net.Conn
	receivers *receivers
}

func (c countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.receivers.in.Add(int64(n))
	return n, err
}

func (c countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.receivers.out.Add(int64(n))
	return n, err
}

func (a *receivers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return countedConn{conn, a}, nil
}

// watchAll opens a watch for each node, on a connection of its own, as kube-proxy's informers do once they have listed.
func (f *fleet) watchAll(ctx context.Context, b *testing.B, a *receivers) {
	list, err := f.client.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{Limit: 1})
	require.NoError(b, err)
	a.nodes = int64(f.clients)
	require.NoError(b, inParallel(f.clients, func(int) error {
		config := rest.CopyConfig(f.cluster.Config)
		config.ContentType = "application/vnd.kubernetes.protobuf"
		config.Dial = a.dial
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		w, err := client.DiscoveryV1().EndpointSlices("").Watch(ctx, metav1.ListOptions{
			ResourceVersion: list.ResourceVersion, AllowWatchBookmarks: true,
			LabelSelector: "!service.kubernetes.io/service-proxy-name,!" + corev1.IsHeadlessService,
		})
		if err != nil {
			return err
		}
		a.readers.Go(func() {
			for event := range w.ResultChan() {
				if event.Type == apiwatch.Modified {
					a.told.Add(1)
				}
			}
			if ctx.Err() == nil {
				a.fail(errors.New("a watch has ended"))
			}
		})
		return nil
	}))
}

// brain is a running cmd/brain.
type brain struct {
	pid     int
	address string
	ca      *testkit.Authority
}

// startBrain starts a brain, which serves over mTLS.
func (f *fleet) startBrain(b *testing.B, program string) (*brain, func()) {
	dir := b.TempDir()
	ca := testkit.NewAuthority(b, dir)
	ca.Server(b, "server", net.IPv4(127, 0, 0, 1))
	cmd := exec.Command(program, "--kubeconfig", f.cluster.AdminKubeconfig(f.cluster.Port()),
		"--status", "127.0.0.1:0", "--listen", "127.0.0.1:0", "--tls-cert-file", filepath.Join(dir, "server.crt"),
		"--tls-private-key-file", filepath.Join(dir, "server.key"), "--client-ca-file", filepath.Join(dir, "ca.crt"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, cmd.Start())
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	b.Cleanup(stop)
	lines := bufio.NewScanner(out)
	require.True(b, lines.Scan(), "it says where it listens")
	r := &brain{pid: cmd.Process.Pid, address: strings.TrimPrefix(lines.Text(), "clients: "), ca: ca}
	require.True(b, lines.Scan())
	ready := strings.TrimSuffix(strings.TrimPrefix(lines.Text(), "status: "), "status") + "readyz"
	require.Eventually(b, func() bool {
		answer, err := http.Get(ready)
		if err != nil {
			return false
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	}, time.Minute, 10*time.Millisecond)
	return r, stop
}

// followAll opens a stream for each node, on a connection of its own, and returns when all have their state.
func (r *brain) followAll(ctx context.Context, b *testing.B, f *fleet, a *receivers) {
	a.nodes = int64(f.clients)
	var certificates []tls.Certificate
	for i := range f.clients {
		certificates = append(certificates, r.ca.Client(b, "node", "system:node:"+f.node(i)))
	}
	var synced atomic.Int64
	require.NoError(b, inParallel(f.clients, func(i int) error {
		config := &tls.Config{RootCAs: r.ca.Pool, Certificates: certificates[i : i+1]}
		conn, err := grpc.NewClient("passthrough:///"+r.address,
			grpc.WithTransportCredentials(credentials.NewTLS(config)),
			grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
				return a.dial(ctx, "tcp", address)
			}),
			grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10), grpc.WithNoProxy(),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.WaitForReady(true)))
		if err != nil {
			return err
		}
		a.readers.Go(func() {
			defer conn.Close()
			if err := a.follow(ctx, conn, &synced); ctx.Err() == nil {
				a.fail(err)
			}
		})
		return nil
	}))
	for synced.Load() < a.nodes {
		require.NoError(b, errors.Join(a.failed(), ctx.Err()))
		time.Sleep(10 * time.Millisecond)
	}
}

// follow does what a node without a sink would do: it acknowledges every batch.
func (a *receivers) follow(ctx context.Context, conn *grpc.ClientConn, synced *atomic.Int64) error {
	stream, err := remotev1.NewBrainClient(conn).Watch(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(&remotev1.Request{Hello: &remotev1.Hello{}}); err != nil {
		return err
	}
	for first := true; ; {
		u, err := stream.Recv()
		if err != nil {
			return err
		}
		if u.Sync == nil || u.Kind == remotev1.Kind_HEARTBEAT {
			continue
		}
		if err := stream.Send(&remotev1.Request{Ack: &remotev1.Ack{Revision: u.Sync.Revision}}); err != nil {
			return err
		}
		if first {
			first = false
			synced.Add(1)
		} else {
			a.told.Add(1)
		}
	}
}
