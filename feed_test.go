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

func (f *byHand) Families() []model.Family { return model.Families() }

func (f *byHand) Applied(err error) {
	text := "fine"
	if err != nil {
		text = err.Error()
	}
	f.applied = append(f.applied, text)
}

func (f *byHand) update(change func()) {
	f.handler.Lock()
	defer f.handler.Unlock()
	change()
}

// A Feed delivers what its State has: everything at first, then waves and retries; and it learns the outcome of each.
func TestAStateComputedElsewhereIsFedToTheSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state, err := localstate.New(t.Context(), localstate.Options{NodeName: "node-1"}, localstate.ClusterOptions{})
		require.NoError(t, err)
		f, rec := &byHand{State: state, started: make(chan struct{})}, &sink.Recorder{}
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: f, Sink: rec, MinInterval: time.Second,
				ResyncInterval: -1})
		}()
		<-f.started
		f.update(func() { _, _ = state.Apply(service("a", "10.96.0.1"), false) })
		synctest.Wait()
		assert.Empty(t, ops(rec), "not before it is complete")
		f.handler.Synced()
		synctest.Wait()
		assert.Equal(t, []string{"SetNode SetService"}, ops(rec))
		rec.FailNext(errors.New("down"))
		f.update(func() { _, _ = state.Apply(slice("a", "10.0.0.1"), false) })
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, []string{"SetEndpoint", "ResyncFailed"}, ops(rec))
		assert.Equal(t, []string{"fine", "down", "fine"}, f.applied)
		cancel()
		require.NoError(t, <-result)
		assert.Empty(t, rec.Violations())
	})
}
