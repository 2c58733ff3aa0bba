package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestOthersAreCleanedUpOnceAfterTheFirstSyncThatSucceeded(t *testing.T) {
	var backend sink.Recorder
	backend.FailNext(errors.New("not yet"))
	calls := 0
	s := &sinks{TeeSink: sink.Tee(&backend), afterFirstSync: func(context.Context) { calls++ }}
	require.Error(t, s.Sync(t.Context()))
	assert.Zero(t, calls)
	for range 2 {
		require.NoError(t, s.Sync(t.Context()))
		assert.Equal(t, 1, calls)
	}
}
