package fakemodel

import (
	"cmp"
	"context"
	"fmt"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Waves turns changes of cluster objects into what they mean to a sink: a wave for each batch, those without any calls left
// out. A benchmark or a test that is about a sink alone makes its waves beforehand, and then calls [Replay] with them.
// NodeName is "n1" if state does not say.
func Waves(ctx context.Context, state localstate.Options, batches ...[]watch.Change) ([]sink.Wave, error) {
	state.NodeName = cmp.Or(state.NodeName, "n1")
	s, err := localstate.New(ctx, state)
	if err != nil {
		return nil, fmt.Errorf("fakemodel: %w", err)
	}
	recorder := &sink.Recorder{}
	for _, batch := range batches {
		for _, change := range batch {
			if err := tell(s, change); err != nil {
				return nil, fmt.Errorf("fakemodel: %w", err)
			}
		}
		if changes := s.Flush(recorder); changes.Any() {
			_ = recorder.Sync(ctx) // only ends the wave
		}
	}
	return recorder.TakeWaves(), nil
}

// Replay makes the calls of a wave to a sink, without Sync.
func Replay(s sink.Sink, wave sink.Wave) {
	all := sink.NewForward(s) // knows which of the optional calls the sink has
	for _, call := range wave.Calls {
		switch call.Op {
		case sink.OpSetNode:
			all.SetNode(call.Node)
		case sink.OpSetService:
			all.SetService(call.Service)
		case sink.OpDeleteService:
			all.DeleteService(call.Name)
		case sink.OpSetEndpoint:
			all.SetEndpoint(call.Endpoint)
		case sink.OpDeleteEndpoint:
			all.DeleteEndpoint(call.Key)
		case sink.OpForceResync:
			all.ForceResync()
		case sink.OpResyncFailed:
			if r, ok := s.(sink.FailureResyncer); ok {
				r.ResyncFailed()
			}
		}
	}
}
