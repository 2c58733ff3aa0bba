package dropin

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	componentbasev1alpha1 "k8s.io/component-base/config/v1alpha1"
	"k8s.io/klog/v2"

	iptablesdataplane "sigs.k8s.io/kube-proxy-lib/internal/kernel/iptables/dataplane"
	"sigs.k8s.io/kube-proxy-lib/internal/kernel/nft/dataplane"
	"sigs.k8s.io/kube-proxy-lib/testing/apiserver"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// work is what it takes to program one change of the network, from the write to the API until the kernel has it.
type work struct {
	requests    int // to the API server
	calls       int // of the kernel, reading ones included
	lines       int // in transactions, as nft or iptables-restore reads them
	allocations uint64
	bytes       uint64 // allocated
}

// The work behind SIG Scalability's network programming latency depends on the change, not on the size of the cluster:
// the program does the same work for one replaced endpoint, whether there are 10 services or 1,000. Mode iptables
// rewrites chains that services share, which have a limited size, so the test has more services than that. Nothing is
// timed: all time is virtual, and the work is counted, with the API server in the process and the kernel in memory.
func TestNetworkProgrammingWorkDoesNotDependOnTheSizeOfTheCluster(t *testing.T) {
	needModesOfLinux(t)
	for mode, services := range map[string][2]int{"nftables": {10, 1000}, "iptables": {1000, 4000}} {
		t.Run(mode, func(t *testing.T) {
			small, large := workFor(t, mode, services[0]), workFor(t, mode, services[1])
			t.Logf("%d services: %+v; %d services: %+v", services[0], small, services[1], large)
			for _, w := range []work{small, large} {
				assert.Zero(t, w.requests, "the watch brings everything")
				assert.NotZero(t, w.calls, "no timer delays a change that comes alone")
				assert.NotZero(t, w.lines)
				assert.NotZero(t, w.allocations)
			}
			assert.Equal(t, small.calls, large.calls)
			assert.Equal(t, small.lines, large.lines)
			// Trees are deeper, by a node or two. One allocation, or 8 bytes, for each service would be far more.
			assert.LessOrEqual(t, large.allocations, small.allocations+100)
			assert.LessOrEqual(t, large.bytes, small.bytes+4096)
		})
	}
}

// workFor returns the least work of several changes, each of an endpoint of another service. The runtime and the
// periodic work of the program add to some of them.
func workFor(t *testing.T, mode string, services int) (least work) {
	synctest.Test(t, func(t *testing.T) {
		slice := func(i, version int) metav1.Object {
			b := kube.EndpointSlice(fmt.Sprintf("default/web-%04d", i)).Port("http", 8080)
			for e := range 10 {
				if e == 0 {
					e = 10 + version
				}
				b.Endpoint(fmt.Sprintf("10.%d.%d.%d", 100+e, i>>8, i&0xff)).OnNode("n2")
			}
			return b.Build()
		}
		objects := []metav1.Object{kube.Node("n1").InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").Build(),
			kube.ServiceCIDR("kubernetes", "10.96.0.0/12")}
		for i := range services {
			objects = append(objects, slice(i, 0), kube.Service(fmt.Sprintf("default/web-%04d", i)).
				ClusterIP(fmt.Sprintf("10.96.%d.%d", 1+i>>8, i&0xff)).Port("http", 80).Build())
		}
		server, err := apiserver.New(objects...)
		require.NoError(t, err)
		r := newRig(t)
		r.ctx = klog.NewContext(t.Context(), logr.Discard())
		r.newClient = func(componentbasev1alpha1.ClientConnectionConfiguration, string) (kubernetes.Interface, error) {
			return kubernetes.NewForConfig(server.Config())
		}
		r.listen = func(context.Context, string, string) (net.Listener, error) {
			return &silentListener{closed: make(chan struct{})}, nil
		}
		k := &kernel{}
		r.machine.nftables = countedNFT{r.nft.Fake, k}
		r.machine.iptables = []iptablesdataplane.Interface{countedIPTables{r.iptables[0].Fake, k},
			countedIPTables{r.iptables[1].Fake, k}}
		stop := r.start(t, "--proxy-mode="+mode, "--hostname-override=n1", "--cluster-cidr=10.0.0.0/8")
		time.Sleep(time.Minute)
		synctest.Wait()
		calls, _ := k.take()
		require.Positive(t, calls, "it has started")

		k.mu.Lock()
		k.counts = true
		k.mu.Unlock()
		for wave := range 30 {
			s := slice(wave*7%services, 1+wave)
			time.Sleep(2 * time.Second) // longer than minSyncPeriod
			synctest.Wait()
			requests := len(server.Requests())
			k.take()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			require.NoError(t, server.Set(s))
			synctest.Wait() // no time passes
			runtime.ReadMemStats(&after)
			calls, lines := k.take()
			w := work{len(server.Requests()) - requests, calls, lines, after.Mallocs - before.Mallocs,
				after.TotalAlloc - before.TotalAlloc}
			if wave == 0 {
				least = w
			}
			least = work{max(least.requests, w.requests), min(least.calls, w.calls), min(least.lines, w.lines),
				min(least.allocations, w.allocations), min(least.bytes, w.bytes)}
		}
		require.NoError(t, stop())
	})
	return least
}

// kernel counts the calls that it gets. While counts is set, it also keeps the texts of changes, and discards the
// changes, because the work of a model is not work of the program.
type kernel struct {
	mu     sync.Mutex
	counts bool
	calls  int
	told   []func() string
}

// take returns the number of calls and of lines since the last time.
func (k *kernel) take() (calls, lines int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, text := range k.told {
		lines += strings.Count(text(), "\n")
	}
	calls, k.calls, k.told = k.calls, 0, nil
	return calls, lines
}

// call counts a call, and reports whether it is to be forgotten.
func (k *kernel) call(text func() string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	if k.counts && text != nil {
		k.told = append(k.told, text)
	}
	return k.counts
}

type countedNFT struct {
	*dataplane.Fake
	k *kernel
}

func (c countedNFT) Apply(ctx context.Context, tx *dataplane.Transaction) error {
	if c.k.call(tx.Text) {
		return ctx.Err()
	}
	return c.Fake.Apply(ctx, tx)
}

func (c countedNFT) ReadTable(ctx context.Context, key dataplane.TableKey,
	elements func(*dataplane.TableSet) bool) (*dataplane.Table, error) {
	c.k.call(nil)
	return c.Fake.ReadTable(ctx, key, elements)
}

type countedIPTables struct {
	*iptablesdataplane.Fake
	k *kernel
}

func (c countedIPTables) Restore(ctx context.Context, b *iptablesdataplane.Batch) error {
	if c.k.call(b.String) {
		return ctx.Err()
	}
	return c.Fake.Restore(ctx, b)
}

func (c countedIPTables) Read(ctx context.Context, table iptablesdataplane.Table,
	prefix string) (*iptablesdataplane.State, error) {
	c.k.call(nil)
	return c.Fake.Read(ctx, table, prefix)
}

// silentListener accepts nothing: a synctest bubble has no network.
type silentListener struct {
	closed chan struct{}
	once   sync.Once
}

func (d *silentListener) Accept() (net.Conn, error) {
	<-d.closed
	return nil, net.ErrClosed
}

func (d *silentListener) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

func (*silentListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }
