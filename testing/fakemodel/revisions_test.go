package fakemodel

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

var (
	_ sink.Sink       = &RevisionSink{}
	_ sink.NodeSetter = &RevisionSink{}
	_ sink.Resyncer   = &RevisionSink{}
)

func TestRevisionsCountSyncsThatSucceed(t *testing.T) {
	r := &sink.Recorder{}
	revisions := Revisions(r)
	boom := errors.New("boom")
	r.FailNext(nil, boom)
	ctx := context.Background()
	require.NoError(t, revisions.Sync(ctx))
	require.Equal(t, boom, revisions.Sync(ctx))
	assert.EqualValues(t, 1, revisions.Revision())
	revisions.SetService(Service("web").Build())
	require.NoError(t, revisions.Sync(ctx))
	assert.EqualValues(t, 2, revisions.Revision())
	assert.Len(t, r.Services(), 1)
}

func TestRevisionsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		revisions := Revisions(&sink.Recorder{})
		require.NoError(t, revisions.Wait(t.Context(), 0), "what was reached is not waited for")
		const waiters = 3
		reached := make(chan uint64, waiters)
		for want := range uint64(waiters) {
			go func() {
				assert.NoError(t, revisions.Wait(t.Context(), want+1))
				reached <- revisions.Revision()
			}()
		}
		for revision := uint64(1); revision <= waiters; revision++ {
			synctest.Wait()
			require.Empty(t, reached, "nobody goes on before revision %d", revision)
			require.NoError(t, revisions.Sync(t.Context()))
			assert.Equal(t, revision, <-reached)
		}

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := revisions.Wait(ctx, 5)
		require.EqualError(t, err, "waiting for revision 5, got as far as 3: context deadline exceeded")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
