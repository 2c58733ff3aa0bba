package brain

import (
	"context"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// testTimeout is how long a test waits for what has to come. It fails a test that hangs, and measures nothing.
const testTimeout = 2 * time.Minute

// cluster is a watch.Source with any number of followers, and what a node should make of it.
type cluster struct {
	mu        sync.Mutex
	objects   map[string]metav1.Object
	followers map[watch.Handler]struct{}
	unsynced  bool   // lists never end
	listed    string // the resourceVersion of the list of Services
	options   localstate.ClusterOptions
}

func newCluster(objects ...metav1.Object) *cluster {
	c := &cluster{objects: map[string]metav1.Object{}, followers: map[watch.Handler]struct{}{}}
	c.set(objects...)
	return c
}

func objectKey(o metav1.Object) string {
	return fmt.Sprintf("%T %s/%s", o, o.GetNamespace(), o.GetName())
}

func (c *cluster) Run(ctx context.Context, _ string, h watch.Handler) error {
	c.mu.Lock()
	for _, key := range slices.Sorted(maps.Keys(c.objects)) {
		h.Update(watch.Change{Object: c.objects[key]})
	}
	if c.listed != "" {
		h.(serverHandler).Heard(&corev1.Service{}, c.listed)
	}
	if !c.unsynced {
		h.Synced()
	}
	c.followers[h] = struct{}{}
	c.mu.Unlock()
	<-ctx.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.followers, h)
	return nil
}

func (c *cluster) change(changes ...watch.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range changes {
		if x.Deleted {
			delete(c.objects, objectKey(x.Object))
		} else {
			c.objects[objectKey(x.Object)] = x.Object
		}
	}
	for h := range c.followers {
		h.Update(changes...)
	}
}

func (c *cluster) set(objects ...metav1.Object) {
	for _, o := range objects {
		c.change(watch.Change{Object: o})
	}
}

func (c *cluster) delete(o metav1.Object) { c.change(watch.Change{Object: o, Deleted: true}) }

// heard says how far the API server's news of a kind of object have been delivered.
func (c *cluster) heard(kind metav1.Object, resourceVersion string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for h := range c.followers {
		h.(serverHandler).Heard(kind, resourceVersion)
	}
}

// want is what a node works out that is fed directly.
func (c *cluster) want(t testing.TB, opts localstate.Options) *sink.Recorder {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	state, err := localstate.New(context.Background(), opts, c.options)
	require.NoError(t, err)
	for _, key := range slices.Sorted(maps.Keys(c.objects)) {
		_, err := state.Apply(c.objects[key], false)
		require.NoError(t, err)
	}
	var r sink.Recorder
	state.Flush(&r)
	return &r
}

// difference says in what two states differ, "" if in nothing.
func difference(want, got *sink.Recorder) string {
	if !want.Node().Equal(got.Node()) {
		return fmt.Sprintf("want %v\ngot  %v", want.Node(), got.Node())
	}
	wants, gots := want.Services(), got.Services()
	for name, s := range wants {
		if !s.Equal(gots[name]) {
			return fmt.Sprintf("want %v\ngot  %v", s, gots[name])
		}
	}
	wantEndpoints, gotEndpoints := want.Endpoints(), got.Endpoints()
	for key, e := range wantEndpoints {
		if !e.Equal(gotEndpoints[key]) {
			return fmt.Sprintf("want %v\ngot  %v", e, gotEndpoints[key])
		}
	}
	if len(wants) != len(gots) || len(wantEndpoints) != len(gotEndpoints) {
		return fmt.Sprintf("want %d services, %d endpoints, got %d and %d", len(wants), len(wantEndpoints), len(gots),
			len(gotEndpoints))
	}
	return ""
}

// awaitState waits until a sink has what a node should have. It returns the lines of the waves that have ended; the
// last Sync may still be running, see awaitClients.
func awaitState(t testing.TB, c *cluster, opts localstate.Options, got *sink.Recorder) (lines []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	for {
		problem := difference(c.want(t, opts), got)
		if problem == "" {
			return lines
		}
		wave, err := got.NextWave(ctx)
		require.NoError(t, err, "node %s: %s", opts.NodeName, problem)
		lines = append(lines, wave.Lines()...)
	}
}

// quiet is a context without logs.
func quiet(t testing.TB) context.Context { return klog.NewContext(t.Context(), logr.Discard()) }

// socket returns a target in a directory with a short name.
func socket(t testing.TB) string {
	t.Helper()
	return "unix://" + filepath.Join(testkit.SocketDir(t), "brain.sock")
}

// replica is a running server.
type replica struct {
	*Server
	target string
	stop   func()
}

// serve starts a server on a Unix socket; it ends with the test, or with stop.
func serve(t testing.TB, opts Options, target string) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(quiet(t))
	server, err := New(ctx, opts)
	require.NoError(t, err)
	ln, err := Listen(ctx, target, 0)
	require.NoError(t, err)
	r := serveOn(t, ctx, cancel, server, ln, target, ServeOptions{})
	if c, ok := opts.Source.(*cluster); !ok || !c.unsynced {
		require.Eventually(t, r.ready, testTimeout, time.Millisecond)
	}
	return r
}

func serveOn(t testing.TB, ctx context.Context, cancel func(), server *Server, ln net.Listener, target string,
	opts ServeOptions) *replica {
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, server.Run(ctx)) })
	wg.Go(func() { require.NoError(t, server.Serve(ctx, ln, opts)) })
	var once sync.Once
	stop := func() {
		once.Do(func() {
			cancel()
			wg.Wait()
		})
	}
	t.Cleanup(stop)
	return &replica{server, target, stop}
}

// follow runs a client until the test ends, or stop is called.
func follow(t testing.TB, to sink.Sink, opts remote.Options) (stop func()) {
	t.Helper()
	return run(t, kubeproxy.Options{Sink: to}, opts)
}

// run is follow with further options.
func run(t testing.TB, to kubeproxy.Options, opts remote.Options) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(quiet(t))
	feed, err := remote.NewFeed(opts)
	require.NoError(t, err)
	to.Feed, to.MinInterval = feed, -1
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, kubeproxy.Run(ctx, to)) })
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
		})
	}
	t.Cleanup(stop)
	return stop
}

// awaitClients waits until the server sees clients as they are wanted.
func (r *replica) awaitClients(t testing.TB, want func([]ClientStatus) bool) {
	t.Helper()
	require.Eventually(t, func() bool { return want(r.Clients()) }, testTimeout, time.Millisecond)
}

var nodeNames = []string{"n1", "n2", "n3"}

func randomChange(d testkit.Random) watch.Change {
	c := watch.Change{Deleted: testkit.OneIn(d, 6)}
	switch d.IntN(10) {
	case 0:
		n := kube.Node(testkit.Pick(d, nodeNames...)).Zone(testkit.Pick(d, "a", "b")).
			InternalIP(testkit.Pick(d, "192.0.2.1", "192.0.2.2")).PodCIDR("10.244.1.0/24")
		c.Object, c.Deleted = n.Build(), false
	case 1:
		c.Object = kube.ServiceCIDR("main", testkit.Pick(d, "10.96.0.0/16", "10.97.0.0/16"))
	case 2, 3, 4:
		c.Object = randomService(d)
	default:
		c.Object = randomSlice(d)
	}
	return c
}

func randomService(d testkit.Random) *corev1.Service {
	b := kube.Service("default/"+testkit.Pick(d, "a", "b", "c", "d")).Port("http", 80).Label("version",
		testkit.Pick(d, "1", "2"))
	if testkit.OneIn(d, 3) {
		b.UDPPort("dns", 53)
	}
	switch d.IntN(4) {
	case 0:
		b.ExternalIP("198.51.100.7")
	case 1:
		b.Type(corev1.ServiceTypeLoadBalancer).LoadBalancerIP("203.0.113.7").SourceRange("192.0.2.0/31", "10.0.0.0/8").
			ExternalLocal().HealthCheckNodePort(31000)
	case 2:
		b.InternalLocal()
	}
	if testkit.OneIn(d, 4) {
		b.Affinity(100)
	}
	return b.Build()
}

func randomSlice(d testkit.Random) metav1.Object {
	b := kube.EndpointSlice("default/"+testkit.Pick(d, "a", "b", "c", "d")).Port("http", 8080)
	if testkit.OneIn(d, 3) {
		b.UDPPort("dns", 5353)
	}
	hints := d.IntN(4)
	for range d.IntN(6) {
		b.Endpoint(fmt.Sprintf("10.244.0.%d", 1+d.IntN(12))).OnNode(testkit.Pick(d, nodeNames...))
		switch d.IntN(8) {
		case 0:
			b.Terminating()
		case 1:
			b.NotReady()
		}
		if hints == 0 || hints == 2 {
			b.ForZones(testkit.Pick(d, "a", "b"))
		}
		if hints == 1 || hints == 2 {
			b.ForNodes(testkit.Pick(d, nodeNames...))
		}
	}
	slice := b.Build()
	slice.Name += testkit.Pick(d, "", "-2")
	return slice
}

func baseObjects() []metav1.Object {
	return []metav1.Object{
		kube.Node("n1").Zone("a").InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").Build(),
		kube.Node("n2").Zone("b").InternalIP("192.0.2.2").PodCIDR("10.244.2.0/24").Build(),
		kube.Node("n3").Zone("a").InternalIP("192.0.2.3").PodCIDR("10.244.3.0/24").Build(),
	}
}

// naming is a slice of a Service that does not exist, whose hints name zones.
func naming(zones ...string) metav1.Object {
	b := kube.EndpointSlice("default/absent").Port("http", 8080)
	for _, zone := range zones {
		b.Endpoint("10.255.0.1").ForZones(zone)
	}
	return b.Build()
}

// numbered returns so many names.
func numbered(prefix string, n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

// web is a service and a slice with an endpoint at each of the addresses.
func web(name string, addresses ...string) []metav1.Object {
	b := kube.EndpointSlice("default/"+name).Port("http", 8080)
	for _, a := range addresses {
		b.Endpoint(a)
	}
	return []metav1.Object{kube.Service("default/"+name).Port("http", 80).Build(), b.Build()}
}

func name(n string) model.ServiceName { return model.ServiceName{Namespace: "default", Name: n} }

func (s *Server) ready() bool { return s.Ready() == nil }

// classOf returns the class of a node, with its state.
func (r *replica) classOf(t *testing.T, node string) *class {
	c := r.idle(t, node)
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.class
}
