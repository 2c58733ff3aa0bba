package kubeproxy_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

func TestTheLiveStateIsExplained(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		feed := local(src)
		name := model.ServiceName{Namespace: "default", Name: "a"}
		_, ok := feed.Explain(name)
		assert.False(t, ok, "before the first run")
		stop := start(t, kubeproxy.Options{Feed: feed, Sink: rec})
		_, ok = feed.Explain(name)
		assert.False(t, ok)
		src.Update(set(service("a", "10.96.0.1"), slice("a", "10.0.0.1"))...)
		e, ok := feed.Explain(name)
		require.True(t, ok)
		assert.Equal(t, localstate.ReasonReady, e.Ports[0].Endpoints[0].Reason)
		require.NoError(t, stop())
		_, ok = feed.Explain(name)
		assert.True(t, ok, "after it has ended, too")
	})
}

// A run keeps nothing when it ends: the next one hands everything to its sink. There is never a second one at a time.
func TestAFeedServesOneRunAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		feed := local(src)
		for range 2 {
			src.started = make(chan struct{})
			rec := &sink.Recorder{}
			stop := start(t, kubeproxy.Options{Feed: feed, Sink: rec})
			src.Update(set(service("a", "10.96.0.1"))...)
			src.Synced()
			synctest.Wait()
			assert.Equal(t, []string{"SetNode SetService"}, ops(rec))
			assert.EqualError(t, kubeproxy.Run(t.Context(), kubeproxy.Options{Feed: feed, Sink: &sink.Recorder{}}),
				"the feed is already running")
			require.NoError(t, stop())
		}
	})
}

// The name is set once, in the source: two different ones would select no services, without an error.
func TestTheServiceProxyNameComesFromTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := &named{newManual(), "mine"}, &sink.Recorder{}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), testr.New(t)))
		defer cancel()
		result := make(chan error, 1)
		go func() { result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: -1}) }()
		<-src.started
		mine := service("a", "10.96.0.1")
		mine.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "mine"}
		src.Update(set(mine, service("b", "10.96.0.2"))...)
		src.Synced()
		synctest.Wait()
		assert.Len(t, rec.Services(), 1)
		assert.Contains(t, rec.Services(), model.ServiceName{Namespace: "default", Name: "a"})
		cancel()
		require.NoError(t, <-result)
	})
	err := kubeproxy.Run(t.Context(), kubeproxy.Options{Sink: &sink.Recorder{}, Feed: &kubeproxy.LocalFeed{
		Source: &named{newManual(), "mine"}, Cluster: localstate.ClusterOptions{ServiceProxyName: "other"}}})
	require.EqualError(t, err, `invalid options: ServiceProxyName is "other", that of the source "mine"`)
}

type named struct {
	*manual
	name string
}

func (n *named) ServiceProxyName() string { return n.name }

func TestNoObjectIsNoChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: -1})
		src.Update(watch.Change{}, watch.Change{Object: (*corev1.Service)(nil)},
			watch.Change{Object: (*corev1.Node)(nil), Deleted: true})
		src.Update(set(service("a", "10.96.0.1"))...)
		src.Synced()
		synctest.Wait()
		assert.Equal(t, []string{"SetNode SetService"}, ops(rec))
		require.NoError(t, stop())
	})
}

// node returns this node's object.
func node(podCIDRs ...string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
}

func byNodeCIDR(src watch.Source, s sink.Sink, h *health.Proxy) kubeproxy.Options {
	return kubeproxy.Options{Sink: s, Health: h, MinInterval: -1, ResyncInterval: -1, Feed: &kubeproxy.LocalFeed{
		Source: src,
		State:  localstate.Options{NodeName: "node-1", DetectLocal: localstate.DetectLocal{NodeCIDR: true}}}}
}

func TestNothingIsAppliedBeforeTheNodesPodCIDRsAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, proxy := newManual(), &sink.Recorder{}, health.New(0)
		stop := start(t, byNodeCIDR(src, rec, proxy))
		assert.Equal(t, health.Listing, proxy.Phase())
		src.Update(set(service("a", "10.96.0.1"), slice("a", "10.0.0.1"), node())...)
		src.Synced()
		time.Sleep(5*time.Minute - 1)
		synctest.Wait()
		assert.Empty(t, ops(rec), "nobody knows what is local")
		assert.Equal(t, health.AwaitingNodeCIDR, proxy.Phase())

		src.Update(set(node("10.1.0.0/24"))...)
		synctest.Wait()
		assert.Equal(t, []string{"SetNode SetService SetEndpoint"}, ops(rec))
		assert.Equal(t, health.Serving, proxy.Phase())
		a := rec.Services()[model.ServiceName{Namespace: "default", Name: "a"}]
		assert.Equal(t, model.MasqueradeUnlessLocalPod, a.Ports[0].Routes.IPv4.ClusterIP.Masquerade)

		// A node that registers again has no podCIDRs at first.
		src.Update(watch.Change{Object: node(), Deleted: true})
		src.Update(set(node())...)
		time.Sleep(time.Hour)
		assert.Equal(t, []string{"10.1.0.0/24"}, texts(rec.Node().LocalPods.CIDRs))
		assert.Equal(t, health.Serving, proxy.Phase())
		src.Update(set(node("10.1.7.0/24"))...)
		synctest.Wait()
		assert.Equal(t, []string{"10.1.7.0/24"}, texts(rec.Node().LocalPods.CIDRs), "until there are others")
		require.NoError(t, stop())
		assert.Empty(t, rec.Violations())
	})
}

func texts[T interface{ String() string }](values []T) (texts []string) {
	for _, v := range values {
		texts = append(texts, v.String())
	}
	return texts
}

// A source that delivers nothing more does not end the wait.
func TestTheWaitForPodCIDRsOutlastsTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec := newManual(), &sink.Recorder{}
		result := make(chan error, 1)
		ctx := klog.NewContext(t.Context(), testr.New(t))
		go func() { result <- kubeproxy.Run(ctx, byNodeCIDR(src, rec, nil)) }()
		<-src.started
		begin := time.Now()
		src.Synced()
		src.ended <- nil
		require.ErrorContains(t, <-result, "has no podCIDRs after 5m0s")
		assert.Equal(t, 5*time.Minute, time.Since(begin))
		assert.Empty(t, ops(rec))
	})
}

func TestTheWaitForPodCIDRsIsBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		timeout, after time.Duration
		want           string
	}{
		"by default": {0, 5 * time.Minute,
			`node "node-1" has no podCIDRs after 5m0s: local traffic cannot be detected`},
		"as the options say": {time.Second, time.Second,
			`node "node-1" has no podCIDRs after 1s: local traffic cannot be detected`},
		"unless they say not": {-1, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src, rec := newManual(), &sink.Recorder{}
				opts := byNodeCIDR(src, rec, nil)
				opts.Feed.(*kubeproxy.LocalFeed).NodeCIDRTimeout = tc.timeout
				ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), testr.New(t)))
				defer cancel()
				result := make(chan error, 1)
				go func() { result <- kubeproxy.Run(ctx, opts) }()
				<-src.started
				time.Sleep(time.Hour) // listing may take as long as it likes
				begin := time.Now()
				src.Synced()
				if tc.want == "" {
					time.Sleep(24 * time.Hour)
					cancel()
					require.NoError(t, <-result)
				} else {
					require.EqualError(t, <-result, tc.want)
					assert.Equal(t, tc.after, time.Since(begin))
				}
				assert.Empty(t, ops(rec))
			})
		})
	}
}

// heard reports a sign of life of its API server, which sends bookmarks.
func (m *manual) heard() {
	for _, kind := range []metav1.Object{&corev1.Service{}, &discoveryv1.EndpointSlice{}} {
		m.Handler.(interface{ Bookmarks(metav1.Object) }).Bookmarks(kind)
		m.heardOf(kind, "1")
	}
}

func (m *manual) heardOf(kind metav1.Object, resourceVersion string) {
	m.Handler.(interface{ Heard(metav1.Object, string) }).Heard(kind, resourceVersion)
}

// running is a run with a transcript of its log.
func running(t *testing.T, src *manual, node string) (*transcript, *health.Proxy) {
	return runningFrom(t, src, &kubeproxy.LocalFeed{Source: src, State: localstate.Options{NodeName: node}})
}

func runningFrom(t *testing.T, src *manual, feed kubeproxy.Feed) (*transcript, *health.Proxy) {
	lines, proxy := &transcript{}, health.New(0)
	logger := funcr.New(func(_, args string) { lines.add(args) }, funcr.Options{})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	result := make(chan error, 1)
	go func() {
		result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: &sink.Recorder{}, Health: proxy})
	}()
	<-src.started
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-result)
	})
	return lines, proxy
}

// firstSync is logged after the first Sync.
const firstSync = `"level"=0 "msg"="Everything is applied for the first time" "duration"="0s"`

func TestASilentAPIServerIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		lines, proxy := running(t, src, "")
		src.heard()
		src.Synced()
		synctest.Wait()
		assert.Equal(t, []string{firstSync}, lines.take())
		for range 20 {
			time.Sleep(time.Minute)
			src.heard()
		}
		synctest.Wait()
		assert.Empty(t, lines.take(), "it says something every minute")
		assert.Zero(t, proxy.DisconnectedSince())
		last := time.Now()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{`"msg"="The API server is silent; applied rules stay in place, and changes ` +
			`are missed" "error"=null "kind"="EndpointSlice" "since"="` + last.String() + `"`}, lines.take(), "once")
		assert.True(t, proxy.DisconnectedSince().Equal(last))
		assert.True(t, proxy.Healthy())
		src.heard()
		assert.Equal(t, []string{`"level"=0 "msg"="The API server answers again" "after"="10m0s"`}, lines.take())
		assert.Zero(t, proxy.DisconnectedSince())
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		assert.Len(t, lines.take(), 1, "it is noticed again")
	})
}

// Without bookmarks, nothing is heard of objects that do not change until client-go begins another watch.
func TestAQuietAPIServerWithoutBookmarksIsNotMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		lines, proxy := running(t, src, "")
		src.heardOf(&corev1.Service{}, "1")
		src.Synced()
		for range 3 {
			time.Sleep(10 * time.Minute)
			src.heardOf(&corev1.Service{}, "1")
		}
		synctest.Wait()
		assert.Equal(t, []string{firstSync}, lines.take())
		assert.Zero(t, proxy.DisconnectedSince())
		time.Sleep(12 * time.Minute)
		synctest.Wait()
		assert.Len(t, lines.take(), 1, "it is noticed if that does not come")
		assert.NotZero(t, proxy.DisconnectedSince())
	})
}

// One watch may hang while the others are alive. A kind that is no longer served does not count as silent.
func TestAWatchThatHangsIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		lines, proxy := running(t, src, "")
		src.heard()
		src.heardOf(&networkingv1.ServiceCIDR{}, "1")
		src.Synced()
		last := time.Now()
		for range 4 {
			time.Sleep(time.Minute)
			src.heardOf(&corev1.Service{}, "2")
			src.heardOf(&networkingv1.ServiceCIDR{}, "")
		}
		synctest.Wait()
		logged := lines.take()
		require.Len(t, logged, 2, "%v", logged)
		assert.Contains(t, logged[1], `"kind"="EndpointSlice" "since"="`+last.String()+`"`)
		assert.True(t, proxy.DisconnectedSince().Equal(last))
		src.heardOf(&discoveryv1.EndpointSlice{}, "2")
		assert.Equal(t, []string{`"level"=0 "msg"="The API server answers again" "after"="4m0s"`}, lines.take())
		assert.Zero(t, proxy.DisconnectedSince())
	})
}

// Some sources, such as Files, do not report when they last heard from the cluster.
func TestASourceThatDoesNotTellIsNotSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		lines, proxy := running(t, src, "")
		src.Synced()
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.Equal(t, []string{firstSync}, lines.take())
		assert.Zero(t, proxy.DisconnectedSince())
	})
}

func TestAListThatDoesNotComeIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		began := time.Now()
		lines, proxy := running(t, src, "")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Zero(t, proxy.DisconnectedSince())
		time.Sleep(4 * time.Minute)
		synctest.Wait()
		logged := lines.take()
		require.Len(t, logged, 3, "every 90 s")
		assert.Contains(t, logged[0], "Nothing is applied yet, because not everything has been listed")
		assert.True(t, proxy.DisconnectedSince().Equal(began), "nothing has been heard at all")
		src.Synced()
		assert.Zero(t, proxy.DisconnectedSince())
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{firstSync}, lines.take())
	})
}

// A server that sends anything before its lists are complete is not silent, even if it was at first.
func TestAServerThatIsHeardLateIsConnected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		_, proxy := running(t, src, "")
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		assert.NotZero(t, proxy.DisconnectedSince())
		src.heard()
		assert.Zero(t, proxy.DisconnectedSince())
	})
}

func TestANodeThatDoesNotExistIsNoticed(t *testing.T) {
	for name, test := range map[string]struct {
		changes []watch.Change
		logged  int
	}{
		"none":    {nil, 1},
		"deleted": {append(set(node()), watch.Change{Object: node(), Deleted: true}), 1},
		"exists":  {set(node()), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				src := newManual()
				lines, proxy := running(t, src, "node-1")
				src.Update(test.changes...)
				src.Synced()
				assert.Equal(t, test.logged > 0, proxy.NodeMissing())
				synctest.Wait()
				logged := lines.take()
				require.Len(t, logged, test.logged+1)
				assert.Equal(t, firstSync, logged[test.logged])
				for _, line := range logged[:test.logged] {
					assert.Contains(t, line, "There is no Node of this name")
					assert.Contains(t, line, `"node"="node-1"`)
				}
				src.Update(set(node())...)
				assert.False(t, proxy.NodeMissing(), "it has come")
			})
		})
	}
}

func TestEventsAreReportedAsTheyCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		var events []watch.Change
		feed := local(src)
		feed.OnEvent = func(c watch.Change) { events = append(events, c) }
		lines, proxy := runningFrom(t, src, feed)
		a, other := service("a", "10.96.0.1"), service("b", "10.96.0.2")
		other.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
		want := append(set(a, other, a, slice("a", "10.0.0.1"), node()), watch.Change{Object: a, Deleted: true},
			watch.Change{Object: service("never", ""), Deleted: true})
		src.heard()
		src.Update(want[:4]...)
		src.Update(watch.Change{}, watch.Change{Object: (*corev1.Service)(nil)}, watch.Change{Object: &corev1.Pod{}})
		src.Synced()
		src.Update(want[4:]...)
		synctest.Wait()
		assert.Equal(t, want, events, "also what is repeated, or not for this node; nothing that is no object")
		lines.take()

		// Whatever else the source delivers still arrives.
		time.Sleep(time.Hour)
		synctest.Wait()
		assert.NotZero(t, proxy.DisconnectedSince())
		require.Len(t, lines.take(), 1)
	})
}

// nodeless is a source without Nodes, as watch.Informers is with two informers alone.
type nodeless struct{ *manual }

func (nodeless) DeliversNodes() bool { return false }

// The program knows its node by other means, so the node's name is not reported as wrong.
func TestASourceWithoutNodesIsMissedByNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newManual()
		lines, proxy := runningFrom(t, src, &kubeproxy.LocalFeed{Source: nodeless{src}, State: localstate.Options{
			NodeName: "node-1", DetectLocal: localstate.DetectLocal{Bridge: "cni0"}}})
		src.Synced()
		synctest.Wait()
		assert.Equal(t, []string{firstSync}, lines.take())
		assert.Equal(t, health.Serving, proxy.Phase())
	})
}

func TestPodCIDRsOfANodeThatNobodyDeliversAreNotWaitedFor(t *testing.T) {
	src := newManual()
	opts := byNodeCIDR(nodeless{src}, &sink.Recorder{}, nil)
	require.EqualError(t, kubeproxy.Run(t.Context(), opts),
		"invalid options: detect local: NodeCIDR needs the Node, and the source delivers no Nodes")
	select {
	case <-src.started:
		t.Error("the source was started")
	default:
	}
}
