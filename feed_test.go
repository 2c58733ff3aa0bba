package kubeproxy_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// byHand is a Feed: a localstate.State that a test changes.
type byHand struct {
	*localstate.State
	handler kubeproxy.FeedHandler
	started chan struct{}
	applied []string
}

func (f *byHand) Run(ctx context.Context, h kubeproxy.FeedHandler) error {
	f.handler = h
	close(f.started)
	<-ctx.Done()
	return nil
}

func (f *byHand) Applied(err error) {
	text := "fine"
	if err != nil {
		text = err.Error()
	}
	f.applied = append(f.applied, text)
}

// A Feed has what a State has: first everything, waves, retries; and it is told how each went.
func TestAStateComputedElsewhereIsFedToTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, err := localstate.New(t.Context(), localstate.Options{NodeName: "node-1"})
		require.NoError(t, err)
		f, rec := &byHand{State: state, started: make(chan struct{})}, &sink.Recorder{}
		ctx, cancel := context.WithCancel(t.Context())
		r, err := kubeproxy.New(ctx, kubeproxy.Options{Feed: f, Sink: rec, MinInterval: time.Second,
			ResyncInterval: -1})
		require.NoError(t, err)
		result := make(chan error, 1)
		go func() { result <- r.Run(ctx) }()
		<-f.started
		f.handler.Update(func() { _, _ = state.Apply(service("a", "10.96.0.1"), false) })
		synctest.Wait()
		assert.Empty(t, ops(rec), "not before it is complete")
		f.handler.Synced()
		synctest.Wait()
		assert.Equal(t, []string{"SetNode SetService"}, ops(rec))
		rec.FailNext(errors.New("down"))
		f.handler.Update(func() { _, _ = state.Apply(slice("a", "10.0.0.1"), false) })
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"SetEndpoint", "ResyncFailed"}, ops(rec))
		assert.Equal(t, []string{"fine", "down", "fine"}, f.applied)
		_, ok := r.Explain(model.ServiceName{Namespace: "default", Name: "a"})
		assert.False(t, ok)
		cancel()
		require.NoError(t, <-result)
		assert.Empty(t, rec.Violations())
	})
}

func TestThereIsOneSourceOfTheState(t *testing.T) {
	_, err := kubeproxy.New(t.Context(), kubeproxy.Options{Sink: &sink.Recorder{}})
	assert.ErrorContains(t, err, "no source")
	_, err = kubeproxy.New(t.Context(), kubeproxy.Options{Sink: &sink.Recorder{}, Source: newManual(), Feed: &byHand{}})
	assert.ErrorContains(t, err, "both a source and a feed")
}
