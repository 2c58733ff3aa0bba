package fakemodel

import (
	"context"
	"errors"
	"slices"
	"time"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// LostAbilities wraps a sink with all optional interfaces in middleware, makes every call, and returns the names of the
// methods that are not passed on, and "errors" if Sync's error is lost. Middleware that embeds a [sink.Sink] instead of
// a [sink.Forward] silently loses SetNode, ForceResync, ResyncFailed and Yield. A test of middleware that passes
// everything on:
//
//	assert.Empty(t, fakemodel.LostAbilities(t.Context(), func(next sink.Sink) sink.Sink { return Wrap(next) }))
func LostAbilities(ctx context.Context, wrap func(next sink.Sink) sink.Sink) []string {
	recorder := &sink.Recorder{}
	s := wrap(yielding{recorder})
	// Like Run, make optional calls only if the sink supports them.
	caller := sink.NewForward(s)
	failure := &sink.FamilyError{Family: model.IPv6, Err: errors.New("made to fail")}
	service := Service("default/web").ClusterIP("10.96.0.10").Port("http", 80).Build()
	endpoint := Endpoint("default/web:http/TCP", "10.244.1.5:8080").Build()

	caller.SetNode(Node("n1").Build())
	caller.SetService(service)
	caller.SetEndpoint(endpoint)
	recorder.FailNext(failure)
	err := caller.Sync(ctx)
	if r, ok := s.(sink.FailureResyncer); ok {
		r.ResyncFailed()
	}
	_ = caller.Sync(ctx)
	caller.ForceResync()
	_ = caller.Sync(ctx)
	caller.DeleteEndpoint(endpoint.Key())
	caller.DeleteService(service.Name)
	_ = caller.Sync(ctx)

	arrived := map[sink.Op]bool{}
	waves := recorder.TakeWaves()
	for _, wave := range waves {
		for _, call := range wave.Calls {
			arrived[call.Op] = true
		}
	}
	var lost []string
	for _, op := range []sink.Op{sink.OpSetNode, sink.OpSetService, sink.OpDeleteService, sink.OpSetEndpoint,
		sink.OpDeleteEndpoint,
		sink.OpForceResync, sink.OpResyncFailed} {
		if !arrived[op] {
			lost = append(lost, string(op))
		}
	}
	if len(waves) < 4 {
		lost = append(lost, "Sync")
	}
	if caller.Yield() == 0 {
		lost = append(lost, "Yield")
	}
	if !errors.Is(err, failure) || sink.FailedFamilies(err) != model.IPv6.Set() {
		lost = append(lost, "errors")
	}
	return slices.Clip(lost)
}

// yielding is a sink whose dataplane is always being read.
type yielding struct{ *sink.Recorder }

// Yield implements [sink.Yielder].
func (yielding) Yield() time.Duration { return time.Second }
