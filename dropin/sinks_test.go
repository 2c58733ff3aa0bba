package dropin

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestOthersAreCleanedUpAfterTheFirstSyncThatSucceededUntilThatHasSucceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := klog.NewContext(t.Context(), logr.Discard())
		var backend sink.Recorder
		backend.FailNext(errors.New("not yet"))
		calls := 0
		s := &sinks{TeeSink: sink.Tee(&backend), afterFirstSync: func(context.Context) error {
			if calls++; calls < 3 {
				return errors.New("the rules may be left")
			}
			return nil
		}}
		require.Error(t, s.Sync(ctx))
		assert.Zero(t, calls)
		for i, want := range []int{1, 2, 3, 3, 3} {
			for range 3 { // that there are many Syncs is no reason to try it more often
				require.NoError(t, s.Sync(ctx))
				assert.Equal(t, want, calls, "hour %d", i)
			}
			time.Sleep(time.Hour)
		}
	})
}

func TestAServicePortThatFailsDoesNotKeepOthersFromBeingCleanedUp(t *testing.T) {
	ctx := klog.NewContext(t.Context(), logr.Discard())
	var backend sink.Recorder
	port := &sink.PortError{Err: errors.New("no match")}
	backend.FailNext(port)
	cleaned := false
	s := &sinks{TeeSink: sink.Tee(&backend), afterFirstSync: func(context.Context) error {
		cleaned = true
		return nil
	}}
	require.ErrorIs(t, s.Sync(ctx), port, "the runner still hears of it")
	assert.True(t, cleaned)
}
