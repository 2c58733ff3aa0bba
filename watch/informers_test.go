package watch

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// withFactory runs a test in virtual time, with a factory over a fake clientset that is shut down at the end.
func withFactory(t *testing.T, objs []runtime.Object, f func(t *testing.T, e *factoryEnv)) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		client := fake.NewClientset(objs...)
		e := &factoryEnv{t: t, ctx: ctx, client: client,
			SharedInformerFactory: informers.NewSharedInformerFactory(client, 0)}
		t.Cleanup(func() {
			cancel()
			e.Shutdown()
		})
		f(t, e)
	})
}

type factoryEnv struct {
	informers.SharedInformerFactory
	t      *testing.T
	ctx    context.Context
	client *fake.Clientset
}

func (e *factoryEnv) source(opts InformersOptions) *Informers {
	e.t.Helper()
	s, err := NewInformers(e, opts)
	require.NoError(e.t, err)
	return s
}

func (e *factoryEnv) start() { e.Start(e.ctx.Done()) }

func TestInformersNeedAFactory(t *testing.T) {
	_, err := NewInformers(nil, InformersOptions{})
	require.ErrorContains(t, err, "factory is nil")
	other := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	_, err = NewInformers(nil, InformersOptions{ServiceInformer: other.Core().V1().Services()})
	require.ErrorContains(t, err, "factory is nil", "half a cluster is never taken for a whole one")
	_, err = NewInformers(other, InformersOptions{NoNodes: true, NodeInformer: other.Core().V1().Nodes()})
	require.EqualError(t, err, "informers source: both NoNodes and a NodeInformer are given")
	_, err = NewInformers(other, InformersOptions{NoServiceCIDRs: true,
		ServiceCIDRInformer: other.Networking().V1().ServiceCIDRs()})
	require.EqualError(t, err, "informers source: both NoServiceCIDRs and a ServiceCIDRInformer are given")
}

// Each informer can be replaced, and the factory's is then not requested.
func TestInformersTakeTheProgramsOwnBeforeThoseOfTheFactory(t *testing.T) {
	withFactory(t, []runtime.Object{service("theirs"), slice("theirs-1"), node("n1"), serviceCIDR("kubernetes")},
		func(t *testing.T, e *factoryEnv) {
			ctx, cancel := context.WithCancel(t.Context())
			own := informers.NewSharedInformerFactory(fake.NewClientset(service("own"), slice("own-1"),
				serviceCIDR("own")), 0)
			defer own.Shutdown()
			defer cancel()
			for _, tc := range []struct {
				opts InformersOptions
				want []string
			}{
				{InformersOptions{ServiceInformer: own.Core().V1().Services()},
					[]string{"endpointslices.discovery.k8s.io default/theirs-1", "nodes n1",
						"servicecidrs.networking.k8s.io kubernetes", "services default/own"}},
				{InformersOptions{EndpointSliceInformer: own.Discovery().V1().EndpointSlices()},
					[]string{"endpointslices.discovery.k8s.io default/own-1", "nodes n1",
						"servicecidrs.networking.k8s.io kubernetes", "services default/theirs"}},
				{InformersOptions{ServiceCIDRInformer: own.Networking().V1().ServiceCIDRs()},
					[]string{"endpointslices.discovery.k8s.io default/theirs-1", "nodes n1",
						"servicecidrs.networking.k8s.io own", "services default/theirs"}},
			} {
				r := newRecorder(t)
				s := e.source(tc.opts)
				e.start()
				own.Start(ctx.Done())
				stop := start(t, s, "n1", r)
				r.waitSynced()
				assert.Equal(t, tc.want, r.atSynced)
				stop()
			}
			for _, tc := range []struct {
				opts InformersOptions
				want []string
			}{
				{InformersOptions{NodeInformer: e.Core().V1().Nodes()},
					[]string{"endpointslices.discovery.k8s.io default/own-1", "nodes n1", "services default/own"}},
				{InformersOptions{ServiceCIDRInformer: own.Networking().V1().ServiceCIDRs()},
					[]string{"endpointslices.discovery.k8s.io default/own-1", "servicecidrs.networking.k8s.io own",
						"services default/own"}},
			} {
				tc.opts.ServiceInformer = own.Core().V1().Services()
				tc.opts.EndpointSliceInformer = own.Discovery().V1().EndpointSlices()
				s, err := NewInformers(nil, tc.opts)
				require.NoError(t, err)
				assert.Equal(t, tc.opts.NodeInformer != nil, s.DeliversNodes())
				r := newRecorder(t)
				stop := start(t, s, "n1", r)
				r.waitSynced()
				assert.Equal(t, tc.want, r.atSynced)
				stop()
			}
		})
}

func TestInformersDeliverExistingObjectsAndThenChanges(t *testing.T) {
	objs := []runtime.Object{
		service("a"), slice("a-1"),
		node("n1"), node("n2"), serviceCIDR("kubernetes"),
	}
	withFactory(t, objs, func(t *testing.T, e *factoryEnv) {
		r := newRecorder(t)
		s := e.source(InformersOptions{})
		e.start()
		start(t, s, "n1", r)
		r.waitSynced()
		synctest.Wait() // until the watches are open: the fake clientset does not replay what they miss
		all := []string{
			"endpointslices.discovery.k8s.io default/a-1", "nodes n1", "servicecidrs.networking.k8s.io kubernetes",
			"services default/a",
		}
		assert.Equal(t, all, r.atSynced)
		assert.Equal(t, 4, r.updateCount())

		require.NoError(t, e.client.Tracker().Add(service("b")))
		r.waitFor(append(all, "services default/b")...)
		require.NoError(t, e.client.Tracker().Delete(resources[services], "default", "b"))
		require.NoError(t, e.client.Tracker().Delete(resources[nodes], "", "n1"))
		require.NoError(t, e.client.Tracker().Delete(resources[nodes], "", "n2"))
		r.waitFor(all[0], all[2], all[3])
		synctest.Wait()
		assert.Equal(t, 1, r.syncedCount())
		assert.Equal(t, 7, r.updateCount(), "nothing of what is left out, its deletion neither")
	})
}

func TestInformersTakeAnEmptyClusterForComplete(t *testing.T) {
	withFactory(t, nil, func(t *testing.T, e *factoryEnv) {
		r := newRecorder(t)
		s := e.source(InformersOptions{})
		e.start()
		start(t, s, "n1", r)
		r.waitSynced()
		synctest.Wait()
		assert.Zero(t, r.updateCount())
		require.NoError(t, e.client.Tracker().Add(node("n1")))
		r.waitFor("nodes n1")
	})
}

func TestInformersAreCompleteWithoutServiceCIDRsThatMayNotBeListed(t *testing.T) {
	withFactory(t, []runtime.Object{service("a"), serviceCIDR("kubernetes")}, func(t *testing.T, e *factoryEnv) {
		var allowed atomic.Bool
		e.client.PrependReactor("list", "servicecidrs", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !allowed.Load(), nil, apierrors.NewForbidden(schema.GroupResource{Resource: "servicecidrs"}, "", nil)
		})
		r := newRecorder(t)
		s := e.source(InformersOptions{})
		// The default sleeps until the time at which the program began, which is far away in virtual time.
		require.NoError(t, e.Networking().V1().ServiceCIDRs().Informer().SetWatchErrorHandlerWithContext(
			func(context.Context, *cache.Reflector, error) {}))
		e.start()
		begin := time.Now()
		_, logs := startLogged(t, s, "", r)
		r.waitSynced()
		assert.Equal(t, []string{"services default/a"}, r.atSynced)
		assert.GreaterOrEqual(t, time.Since(begin), serviceCIDRsGrace) // virtual
		assert.Equal(t, 1, countIn(logs(), `resource="servicecidrs.networking.k8s.io"`))
		allowed.Store(true)
		r.waitFor("services default/a", "servicecidrs.networking.k8s.io kubernetes")
		assert.Equal(t, 1, r.syncedCount())
	})
}

func TestInformersMayBeStartedAfterRun(t *testing.T) {
	withFactory(t, []runtime.Object{service("a")}, func(t *testing.T, e *factoryEnv) {
		r := newRecorder(t)
		s := e.source(InformersOptions{})
		_, logs := startLogged(t, s, "n1", r)
		time.Sleep(notStartedHint + time.Second) // virtual
		assert.Zero(t, r.syncedCount())
		assert.Equal(t, 1, countIn(logs(), "is the factory started"))
		e.start()
		r.waitSynced()
		synctest.Wait()
		assert.Equal(t, []string{"services default/a"}, r.atSynced)
	})
}

func TestInformersAreCompleteWhenTheHandlersHaveSeenEverythingNotTheInformers(t *testing.T) {
	withFactory(t, []runtime.Object{service("a"), service("b")}, func(t *testing.T, e *factoryEnv) {
		s := e.source(InformersOptions{})
		e.start()
		e.WaitForCacheSync(e.ctx.Done())
		r := newRecorder(t)
		release := make(chan struct{})
		r.onUpdate = func() { <-release }
		start(t, s, "n1", r)
		synctest.Wait()
		assert.Zero(t, r.syncedCount(), "the handler is still at its first object")
		close(release)
		r.waitSynced()
		synctest.Wait()
		assert.Equal(t, []string{"services default/a", "services default/b"}, r.atSynced)
	})
}

func TestInformersDoNotRepeatAtAResync(t *testing.T) {
	noLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		a := service("a")
		a.ResourceVersion = "7"
		client := fake.NewClientset(a)
		factory := informers.NewSharedInformerFactory(client, time.Minute)
		defer factory.Shutdown()
		defer cancel()
		s, err := NewInformers(factory, InformersOptions{})
		require.NoError(t, err)
		factory.Start(ctx.Done())
		r := newRecorder(t)
		stop := start(t, s, "", r)
		r.waitSynced()
		synctest.Wait()
		time.Sleep(time.Hour) // virtual
		assert.Equal(t, 1, r.updateCount())
		stop()
	})
}

func TestInformersOptionsLeaveOutNodesAndServiceCIDRs(t *testing.T) {
	for _, tc := range []struct {
		opts         InformersOptions
		want         []string
		never        string
		deliverNodes bool
	}{
		{InformersOptions{NoServiceCIDRs: true}, []string{"nodes n1", "services default/a"}, "servicecidrs", true},
		{InformersOptions{NoNodes: true}, []string{"servicecidrs.networking.k8s.io kubernetes", "services default/a"},
			"nodes", false},
	} {
		withFactory(t, []runtime.Object{node("n1"), serviceCIDR("kubernetes"), service("a")},
			func(t *testing.T, e *factoryEnv) {
				r := newRecorder(t)
				s := e.source(tc.opts)
				assert.Equal(t, tc.deliverNodes, s.DeliversNodes())
				e.start()
				start(t, s, "n1", r)
				r.waitSynced()
				synctest.Wait()
				assert.Equal(t, tc.want, r.atSynced)
				for _, action := range e.client.Actions() {
					assert.NotEqual(t, tc.never, action.GetResource().Resource)
				}
			})
	}
}

func TestInformersDoNotWaitForNodesWithoutANodeName(t *testing.T) {
	withFactory(t, []runtime.Object{service("a")}, func(t *testing.T, e *factoryEnv) {
		neverStarted := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		r := newRecorder(t)
		s := e.source(InformersOptions{NodeInformer: neverStarted.Core().V1().Nodes()})
		e.start()
		start(t, s, "", r)
		r.waitSynced()
	})
}

// countingInformer counts its event handlers.
type countingInformer struct {
	coreinformers.NodeInformer
	cache.SharedIndexInformer
	handlers int
}

func (c *countingInformer) Informer() cache.SharedIndexInformer { return c }

func (c *countingInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler,
	o cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	c.handlers++
	return c.SharedIndexInformer.AddEventHandlerWithOptions(h, o)
}

func (c *countingInformer) RemoveEventHandler(r cache.ResourceEventHandlerRegistration) error {
	c.handlers--
	return c.SharedIndexInformer.RemoveEventHandler(r)
}

func TestInformersRemoveTheirHandlers(t *testing.T) {
	withFactory(t, []runtime.Object{node("n1")}, func(t *testing.T, e *factoryEnv) {
		counting := &countingInformer{SharedIndexInformer: e.Core().V1().Nodes().Informer()}
		s := e.source(InformersOptions{NodeInformer: counting})
		e.start()
		r := newRecorder(t)
		stop := start(t, s, "n1", r)
		r.waitSynced()
		assert.Equal(t, 1, counting.handlers)
		stop()
		assert.Zero(t, counting.handlers)
	})
}

func TestInformersTakeTheNodeFromAnotherFactory(t *testing.T) {
	withFactory(t, []runtime.Object{service("a")}, func(t *testing.T, e *factoryEnv) {
		ctx, cancel := context.WithCancel(t.Context())
		ownNode := informers.NewSharedInformerFactory(fake.NewClientset(node("n1")), 0)
		defer ownNode.Shutdown()
		defer cancel()
		r := newRecorder(t)
		s := e.source(InformersOptions{NodeInformer: ownNode.Core().V1().Nodes()})
		e.start()
		ownNode.Start(ctx.Done())
		stop := start(t, s, "n1", r)
		r.waitSynced()
		synctest.Wait()
		assert.Equal(t, []string{"nodes n1", "services default/a"}, r.atSynced)
		stop()
	})
}

func TestInformersRunAgain(t *testing.T) {
	withFactory(t, []runtime.Object{service("a"), node("n1"), node("n2")}, func(t *testing.T, e *factoryEnv) {
		s := e.source(InformersOptions{})
		e.start()
		first, atOnce := newRecorder(t), newRecorder(t)
		stop := start(t, s, "n1", first)
		start(t, s, "n2", atOnce)
		first.waitSynced()
		atOnce.waitSynced()
		synctest.Wait()
		assert.Equal(t, []string{"nodes n1", "services default/a"}, first.atSynced)
		assert.Equal(t, []string{"nodes n2", "services default/a"}, atOnce.atSynced)
		stop()
		require.NoError(t, e.client.Tracker().Add(service("b"))) // first fails the test if it hears of it
		atOnce.waitFor("nodes n2", "services default/a", "services default/b")
		synctest.Wait()

		again := newRecorder(t)
		start(t, s, "n1", again)
		again.waitSynced()
		synctest.Wait()
		assert.Equal(t, []string{"nodes n1", "services default/a", "services default/b"}, again.atSynced)
	})
}

func TestInformersDeliverNothingAfterRunReturnedEvenIfTheInformerIsBehind(t *testing.T) {
	withFactory(t, []runtime.Object{service("a"), service("b"), service("c")}, func(t *testing.T, e *factoryEnv) {
		s := e.source(InformersOptions{})
		e.start()
		e.WaitForCacheSync(e.ctx.Done())
		r := newRecorder(t)
		inUpdate, release := make(chan struct{}, 3), make(chan struct{})
		r.onUpdate = func() {
			inUpdate <- struct{}{}
			<-release
		}
		logger, _ := testLogger(t)
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		returned := make(chan struct{})
		go func() {
			defer close(returned)
			assert.NoError(t, s.Run(ctx, "", r))
			r.mu.Lock()
			r.over = true
			r.mu.Unlock()
		}()
		<-inUpdate
		cancel()
		synctest.Wait()
		select {
		case <-returned:
			t.Error("Run returned while the handler was at work")
		default:
		}
		close(release)
		<-returned
		synctest.Wait()
		assert.Equal(t, 1, r.updateCount())
		assert.Zero(t, r.syncedCount())
	})
}

func TestInformersFailOnceTheyAreShutDown(t *testing.T) {
	withFactory(t, nil, func(t *testing.T, e *factoryEnv) {
		s := e.source(InformersOptions{})
		stopCh := make(chan struct{})
		e.Start(stopCh)
		e.WaitForCacheSync(stopCh)
		close(stopCh)
		e.Shutdown()
		require.ErrorContains(t, s.Run(t.Context(), "n1", newRecorder(t)), "has stopped already")
	})
}

// Tombstones and wrong types come from the informer when it missed a deletion or has a transform function; a real one
// cannot be made to deliver each of them.
func TestInformersHandleTombstonesAndForeignTypes(t *testing.T) {
	tombstone := func(key string, obj any) any { return cache.DeletedFinalStateUnknown{Key: key, Obj: obj} }
	gone := service("a")
	for _, test := range []struct {
		name string
		kind kind
		send func(e *eventHandler)
		want []string
	}{
		{"a tombstone with the last state", services,
			func(e *eventHandler) { e.OnDelete(tombstone("default/a", gone)) }, []string{"-services default/a"}},
		{"a tombstone of another node", nodes,
			func(e *eventHandler) { e.OnDelete(tombstone("n2", node("n2"))) }, nil},
		{"a tombstone without a state", endpointSlices,
			func(e *eventHandler) { e.OnDelete(tombstone("default/a", nil)) },
			[]string{"-endpointslices.discovery.k8s.io default/a"}},
		{"a tombstone without a state of a cluster-wide object", serviceCIDRs,
			func(e *eventHandler) { e.OnDelete(tombstone("kubernetes", nil)) },
			[]string{"-servicecidrs.networking.k8s.io kubernetes"}},
		{"a tombstone without a state of the own node", nodes,
			func(e *eventHandler) { e.OnDelete(tombstone("n1", nil)) }, []string{"-nodes n1"}},
		{"a tombstone without a state of another node", nodes,
			func(e *eventHandler) { e.OnDelete(tombstone("n2", nil)) }, nil},
		{"an addition of a foreign type", services, func(e *eventHandler) { e.OnAdd(node("n1"), false) }, nil},
		{"an update to a foreign type", services, func(e *eventHandler) { e.OnUpdate(gone, "x") }, nil},
		{"an update from a foreign type", services, func(e *eventHandler) { e.OnUpdate("x", gone) },
			[]string{"+services default/a"}},
		{"a deletion of a foreign type", services, func(e *eventHandler) { e.OnDelete(struct{}{}) }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRecorder(t)
			logger, _ := testLogger(t)
			test.send(&eventHandler{
				kind: test.kind, nodeName: "n1", calls: &calls{}, handler: r, logger: logger,
			})
			var got []string
			for i := range r.updateCount() {
				got = append(got, r.update(i)...)
			}
			assert.Equal(t, test.want, got)
		})
	}
}
