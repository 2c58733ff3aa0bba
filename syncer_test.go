package kubeproxy_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// call calls Sync in a goroutine and returns where its result will be.
func call(ctx context.Context, s *kubeproxy.Syncer) <-chan error {
	result := make(chan error, 1)
	go func() { result <- s.Sync(ctx) }()
	return result
}

func TestASyncIncludesWhatCameBeforeTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, syncer := newManual(), &sink.Recorder{}, &kubeproxy.Syncer{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: time.Minute, ResyncInterval: -1,
			Syncer: syncer})
		src.Synced()
		synctest.Wait()
		rec.TakeWaves()

		src.Update(set(service("a", "10.96.0.1"))...)
		require.NoError(t, syncer.Sync(t.Context()))
		assert.Equal(t, []string{"SetService"}, ops(rec))
		require.NoError(t, syncer.Sync(t.Context()))
		assert.Equal(t, []string{""}, ops(rec), "also if nothing has changed")

		first, second := call(t.Context(), syncer), call(t.Context(), syncer)
		synctest.Wait()
		assert.Empty(t, first, "not before the least interval is over")
		require.NoError(t, <-first)
		require.NoError(t, <-second)
		time.Sleep(time.Hour)
		assert.Equal(t, []string{""}, ops(rec), "one Sync for both, and no more")
		require.NoError(t, stop())
	})
}

// syncFunc is a sink with this Sync.
type syncFunc func(context.Context) error

func (syncFunc) SetService(*model.Service)        {}
func (syncFunc) DeleteService(model.ServiceName)  {}
func (syncFunc) SetEndpoint(*model.Endpoint)      {}
func (syncFunc) DeleteEndpoint(model.EndpointKey) {}

func (f syncFunc) Sync(ctx context.Context) error { return f(ctx) }

// A Sync that is already running may have read the old value of what the caller has changed.
func TestACallDuringASyncWaitsForTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, syncer, results := newManual(), &kubeproxy.Syncer{}, make(chan error)
		stop := start(t, kubeproxy.Options{Feed: local(src), MinInterval: -1, Syncer: syncer,
			Sink: syncFunc(func(context.Context) error { return <-results })})
		src.Synced()
		synctest.Wait() // in the first Sync
		called := call(t.Context(), syncer)
		synctest.Wait()
		results <- nil
		synctest.Wait() // in the second one
		assert.Empty(t, called)
		results <- nil
		require.NoError(t, <-called)
		require.NoError(t, stop())
	})
}

func TestACallBeforeTheStateIsCompleteWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, syncer := newManual(), &sink.Recorder{}, &kubeproxy.Syncer{}
		early := call(t.Context(), syncer)
		time.Sleep(time.Hour)
		assert.Empty(t, early, "there is no run")
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, Syncer: syncer, ResyncInterval: -1})
		ready := call(t.Context(), syncer)
		time.Sleep(time.Hour)
		assert.Empty(t, early)
		assert.Empty(t, ready)
		src.Synced()
		require.NoError(t, <-early)
		require.NoError(t, <-ready)
		time.Sleep(time.Hour)
		assert.Equal(t, []string{"SetNode"}, ops(rec), "the first Sync is what was asked for")
		require.NoError(t, stop())
	})
}

func TestTheErrorOfTheSyncIsReturnedAndTheRunGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, syncer := newManual(), &kubeproxy.Syncer{}
		var fails atomic.Pointer[error]
		stop := start(t, kubeproxy.Options{Feed: local(src), MinInterval: -1, RetryInterval: time.Minute, Syncer: syncer,
			Sink: syncFunc(func(context.Context) error { return *fails.Load() })})
		family := &sink.FamilyError{Family: model.IPv6, Err: errors.New("no IPv6")}
		port := &sink.PortError{Port: model.PortName{Port: "http"}, Family: model.IPv4, Err: errors.New("in use")}
		for i, failure := range []error{family, port} {
			fails.Store(&failure)
			if i == 0 {
				src.Synced() // the first Sync fails
			}
			require.Equal(t, failure, syncer.Sync(t.Context()))
			require.Equal(t, failure, syncer.Sync(t.Context()), "also between the retries")
			time.Sleep(time.Hour)
		}
		fails.Store(new(error))
		require.NoError(t, syncer.Sync(t.Context()))
		require.NoError(t, stop())
	})
}

func TestCallsEndWithTheRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, syncer := newManual(), &kubeproxy.Syncer{}
		run := func() func() error {
			src = newManual()
			return start(t, kubeproxy.Options{Feed: local(src), Syncer: syncer,
				Sink: syncFunc(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })})
		}
		stop := run()
		waiting := call(t.Context(), syncer)
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, kubeproxy.ErrRunEnded, <-waiting, "nothing was listed")
		require.Equal(t, kubeproxy.ErrRunEnded, syncer.Sync(t.Context()), "at once")

		stop = run()
		src.Synced()
		during := call(t.Context(), syncer)
		synctest.Wait() // in the Sync
		after := call(t.Context(), syncer)
		synctest.Wait()
		require.NoError(t, stop())
		require.Equal(t, kubeproxy.ErrRunEnded, <-during, "the Sync was interrupted")
		require.Equal(t, kubeproxy.ErrRunEnded, <-after)

		run()
		waiting = call(t.Context(), syncer)
		broken := errors.New("broken")
		src.ended <- broken
		err := <-waiting
		require.ErrorIs(t, err, kubeproxy.ErrRunEnded)
		require.ErrorIs(t, err, broken)

		require.Error(t, kubeproxy.Run(t.Context(), kubeproxy.Options{Syncer: syncer}))
		require.ErrorContains(t, syncer.Sync(t.Context()), "no feed")
	})
}

// For a call that waits for the run to begin, invalid options are a run that has ended.
func TestACallDoesNotWaitForARunThatCannotBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		syncer := &kubeproxy.Syncer{}
		early := call(t.Context(), syncer)
		synctest.Wait()
		require.Error(t, kubeproxy.Run(t.Context(), kubeproxy.Options{Syncer: syncer}))
		require.ErrorContains(t, <-early, "no feed")
	})
}

func TestAPermanentErrorIsThatOfTheSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, syncer := newManual(), &kubeproxy.Syncer{}
		permanent := &sink.PermanentError{Err: errors.New("no kernel")}
		stop := start(t, kubeproxy.Options{Feed: local(src), Syncer: syncer,
			Sink: syncFunc(func(context.Context) error { return permanent })})
		waiting := call(t.Context(), syncer)
		synctest.Wait()
		src.Synced()
		require.Equal(t, permanent, <-waiting)
		require.Error(t, stop())
		err := syncer.Sync(t.Context())
		require.ErrorIs(t, err, kubeproxy.ErrRunEnded)
		require.ErrorIs(t, err, permanent)
	})
}

// A program that recovers from its backend's panic is not kept waiting.
func TestACallEndsWithARunThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, syncer := newManual(), &kubeproxy.Syncer{}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan any)
		go func() {
			defer func() { ended <- recover() }()
			_ = kubeproxy.Run(ctx, kubeproxy.Options{Feed: local(src), Syncer: syncer,
				Sink: syncFunc(func(context.Context) error { panic("a bug") })})
		}()
		waiting := call(t.Context(), syncer)
		<-src.started
		synctest.Wait()
		src.Synced()
		assert.Equal(t, "a bug", <-ended)
		require.Equal(t, kubeproxy.ErrRunEnded, <-waiting)
		cancel()
	})
}

func TestACallEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, rec, syncer := newManual(), &sink.Recorder{}, &kubeproxy.Syncer{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: rec, MinInterval: time.Minute, ResyncInterval: -1,
			Syncer: syncer})
		src.Synced()
		synctest.Wait()
		rec.TakeWaves()
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, enough)
		defer cancel()
		require.Equal(t, enough, syncer.Sync(ctx))
		time.Sleep(time.Hour)
		assert.Equal(t, []string{""}, ops(rec), "what was asked for is done")
		require.Equal(t, enough, syncer.Sync(ctx))
		time.Sleep(time.Hour)
		assert.Empty(t, ops(rec), "a call that cannot wait asks for nothing")
		require.NoError(t, stop())
	})
}

func TestASyncerServesOneRunAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, syncer := newManual(), &kubeproxy.Syncer{}
		stop := start(t, kubeproxy.Options{Feed: local(src), Sink: &sink.Recorder{}, Syncer: syncer})
		require.ErrorContains(t, kubeproxy.Run(t.Context(),
			kubeproxy.Options{Feed: local(newManual()), Sink: &sink.Recorder{}, Syncer: syncer}), "another run")
		src.Synced()
		require.NoError(t, syncer.Sync(t.Context()), "the first one goes on")
		require.NoError(t, stop())
	})
}

// Programs such as Calico's apply their own changes at once, here a route, and report when they are applied.
func TestAProgramAppliesAtOnceWhatItHasChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, syncer := newManual(), &kubeproxy.Syncer{}
		route, applied := "before", ""
		stop := start(t, kubeproxy.Options{Feed: local(src), Syncer: syncer,
			Sink: sink.NewFullState(func(context.Context, *sink.Snapshot) error { applied = route; return nil })})
		src.Synced()
		require.NoError(t, syncer.Sync(t.Context()))
		assert.Equal(t, "before", applied)
		for _, now := range []string{"after", "later"} {
			route = now
			require.NoError(t, syncer.Sync(t.Context()), "the callback is called although the cluster is the same")
			assert.Equal(t, now, applied)
		}
		require.NoError(t, stop())
	})
}
