package dropin

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel"
)

// The optional interfaces of a backend reach Run through the whole chain, such as the one that lets other programs read
// its rules.
func TestTheChainLosesNoAbility(t *testing.T) {
	ctx := klog.NewContext(t.Context(), logr.Discard())
	assert.Empty(t, fakemodel.LostAbilities(ctx, func(backend sink.Sink) sink.Sink {
		return &sinks{TeeSink: sink.Tee(backend), others: &others{find: func(context.Context) []string { return nil },
			remove: func(context.Context) error { return nil }}}
	}))
}

func TestAServicePortThatFailsDoesNotKeepOthersFromBeingCleanedUp(t *testing.T) {
	ctx := klog.NewContext(t.Context(), logr.Discard())
	var backend sink.Recorder
	port := &sink.PortError{Err: errors.New("no match")}
	backend.FailNext(port)
	cleaned := false
	s := &sinks{TeeSink: sink.Tee(&backend), others: &others{
		find: func(context.Context) []string { return nil },
		remove: func(context.Context) error {
			cleaned = true
			return nil
		},
	}}
	require.ErrorIs(t, s.Sync(ctx), port, "the runner still hears of it")
	assert.True(t, cleaned)
}
