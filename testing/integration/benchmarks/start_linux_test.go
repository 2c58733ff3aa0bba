package benchmarks

import (
	"context"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/integration/cluster"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// maxStart is the goal: the time until the first Sync, as a multiple of what bare informers take to list the same
// objects.
const maxStart = 1.3

// BenchmarkStart measures what precedes the rules, from the start to the first Sync of a sink that does nothing. In
// turn with it, it measures informers without a handler: the share of client-go and of the API server, below which no
// proxy can start. The judge's start is longer by the time that its connections to all services take.
//
//	go test -run - -bench '^BenchmarkStart$' -benchtime 10x -timeout 1h ./benchmarks
func BenchmarkStart(b *testing.B) {
	for _, size := range []program.Size{{Services: 10000, Endpoints: 10}, {Services: 44000, Endpoints: 1}} {
		b.Run(size.String(), func(b *testing.B) { benchmarkStart(b, size) })
	}
}

func benchmarkStart(b *testing.B, size program.Size) {
	c := cluster.Start(b, cluster.Options{})
	createNode(b, c.Client)
	o := &objects{client: c.Client}
	o.shape(b, size.Services, size.Endpoints)
	control, err := findControlPlane()
	require.NoError(b, err)
	sides := []struct {
		name  string
		start func(context.Context, *testing.B, kubernetes.Interface)
		took  []time.Duration
	}{{name: "informers", start: startInformers}, {name: "watch", start: startWatch}, {name: "Run", start: startRun}}
	for _, side := range sides { // the API server's caches, and this program's
		measureStart(b, c, control, side.start)
	}
	for round := range b.N {
		for i := range sides {
			side := &sides[(round+i)%len(sides)]
			side.took = append(side.took, measureStart(b, c, control, side.start))
		}
	}
	b.ReportMetric(0, "ns/op") // the sum of all says nothing
	median := func(i int) float64 {
		slices.Sort(sides[i].took)
		return sides[i].took[len(sides[i].took)/2].Seconds()
	}
	for i, side := range sides {
		b.ReportMetric(median(i)*1000, side.name+"-ms")
	}
	b.ReportMetric(median(1)/median(0), "watch/informers")
	ratio := median(2) / median(0)
	b.ReportMetric(ratio, "Run/informers")
	if ratio > maxStart && os.Getenv(envGoals) == "1" {
		b.Errorf("Run takes %.2f times as long as informers, and not at most %.1f", ratio, maxStart)
	}
}

// measureStart measures one start, with a client of its own.
func measureStart(b *testing.B, c *cluster.Cluster, control controlPlane,
	start func(context.Context, *testing.B, kubernetes.Interface)) time.Duration {
	_, err := control.settle(5 * time.Second) // both sides are disturbed alike
	require.NoError(b, err)
	client, err := kubernetes.NewForConfig(c.Config)
	require.NoError(b, err)
	_, err = client.Discovery().ServerVersion() // connects
	require.NoError(b, err)
	runtime.GC()
	ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
	defer cancel()
	began := time.Now()
	start(ctx, b, client)
	return time.Since(began)
}

func startInformers(ctx context.Context, b *testing.B, client kubernetes.Interface) {
	ctx, cancel := context.WithCancel(ctx)
	selecting := func(labels, fields string) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(client, 0,
			informers.WithTweakListOptions(func(o *metav1.ListOptions) {
				o.LabelSelector, o.FieldSelector = labels, fields
			}))
	}
	services := selecting("!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None")
	endpointSlices, node, rest := selecting("!service.kubernetes.io/headless", ""),
		selecting("", "metadata.name="+nodeName), selecting("", "")
	services.Core().V1().Services().Informer()
	endpointSlices.Discovery().V1().EndpointSlices().Informer()
	node.Core().V1().Nodes().Informer()
	rest.Networking().V1().ServiceCIDRs().Informer()
	all := []informers.SharedInformerFactory{services, endpointSlices, node, rest}
	for _, f := range all {
		f.Start(ctx.Done())
	}
	for _, f := range all {
		for kind, ok := range f.WaitForCacheSync(ctx.Done()) {
			require.True(b, ok, kind)
		}
	}
	cancel()
	for _, f := range all {
		f.Shutdown()
	}
}

// syncedHandler takes what a source delivers, and does nothing with it.
type syncedHandler struct{ synced context.CancelFunc }

func (syncedHandler) Update(...watch.Change) {}
func (h syncedHandler) Synced()              { h.synced() }

func startWatch(ctx context.Context, b *testing.B, client kubernetes.Interface) {
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	require.NoError(b, err)
	run, cancel := context.WithCancel(ctx)
	require.NoError(b, source.Run(run, nodeName, syncedHandler{cancel}))
	require.NoError(b, ctx.Err())
}

func startRun(ctx context.Context, b *testing.B, client kubernetes.Interface) {
	source, err := watch.NewClientset(client, watch.ClientsetOptions{})
	require.NoError(b, err)
	run, cancel := context.WithCancel(ctx)
	require.NoError(b, kubeproxy.Run(run, kubeproxy.Options{
		Feed: &kubeproxy.LocalFeed{Source: source, State: localstate.Options{NodeName: nodeName}},
		Sink: &firstSync{cancel: cancel},
	}))
	require.NoError(b, ctx.Err())
}

// firstSync is a sink that does nothing, and ends the run at the first Sync.
type firstSync struct{ cancel context.CancelFunc }

func (*firstSync) SetService(*model.Service)        {}
func (*firstSync) DeleteService(model.ServiceName)  {}
func (*firstSync) SetEndpoint(*model.Endpoint)      {}
func (*firstSync) DeleteEndpoint(model.EndpointKey) {}

func (s *firstSync) Sync(context.Context) error {
	s.cancel()
	return nil
}
