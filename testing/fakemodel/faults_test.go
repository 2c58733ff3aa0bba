package fakemodel

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

var (
	_ sink.Sink       = &faultySink{}
	_ sink.NodeSetter = &faultySink{}
	_ sink.Resyncer   = &faultySink{}
)

// outcomes asks n times.
func outcomes(f *Faults, n int) []string {
	var texts []string
	for range n {
		if err := f.Next("write"); err != nil {
			texts = append(texts, err.Error())
		} else {
			texts = append(texts, "")
		}
	}
	return texts
}

func TestFaultsAreReproducible(t *testing.T) {
	first := outcomes(NewFaults(7, 0.3), 200)
	assert.Equal(t, first, outcomes(NewFaults(7, 0.3), 200))
	assert.NotEqual(t, first, outcomes(NewFaults(8, 0.3), 200))

	failures := 0
	for i, text := range first {
		if text != "" {
			failures++
			assert.Regexp(t, `^write: injected fault \(seed 7, operation \d+\)$`, text)
			assert.Contains(t, text, "operation "+itoa(i+1)+")")
		}
	}
	assert.InDelta(t, 60, failures, 25)
}

func TestFaultsFollowTheProbability(t *testing.T) {
	f := NewFaults(1, 1)
	require.ErrorIs(t, f.Next("x"), ErrFault)
	f.SetProbability(0)
	for range 100 {
		require.NoError(t, f.Next("x"))
	}
	assert.Equal(t, 1, f.injected)
	assert.NotContains(t, outcomes(NewFaults(1, 1), 100), "")
}

func TestFaultySink(t *testing.T) {
	r := &sink.Recorder{}
	faults := NewFaults(3, 0.5)
	f := faulty(r, faults)
	f.SetNode(Node("n1").Build())
	f.SetService(Service("web").Build())
	f.SetEndpoint(Endpoint("web/TCP", "10.244.1.5:80").Build())
	f.DeleteEndpoint(Endpoint("web/TCP", "10.244.1.5:80").Build().Key())
	f.DeleteService(model.ServiceName{Namespace: "default", Name: "web"})
	f.ForceResync()
	before, after, good := 0, 0, 0
	for range 100 {
		reached := len(r.TakeWaves())
		require.Zero(t, reached)
		err := f.Sync(context.Background())
		waves := r.TakeWaves()
		if err == nil || len(waves) > 0 && waves[0].Calls != nil {
			require.Len(t, waves, 1)
		}
		switch {
		case err == nil:
			good++
		case len(waves) == 1:
			require.ErrorContains(t, err, "after Sync: injected fault")
			after++
		default:
			require.ErrorContains(t, err, "before Sync: injected fault")
			before++
		}
	}
	assert.Positive(t, good)
	assert.Positive(t, after, "some failures come after the sink has applied it")
	assert.Positive(t, before, "some failures come before the sink hears of it")
	assert.Equal(t, before+after, faults.injected)

	faults.SetProbability(0)
	boom := errors.New("boom")
	r.FailNext(boom)
	assert.Equal(t, boom, f.Sync(context.Background()), "the sink's own errors are passed on")
}

// A sink that fails at random ends where one that never fails does.
func TestFaultySinkConverges(t *testing.T) {
	r := &sink.Recorder{}
	faults := NewFaults(5, 0.6)
	d := NewDriver(t, Options{NewSink: func() sink.Sink { return faulty(r, faults) }})
	tries := 0
	for i := range 9 {
		d.Set(Service("web").NodePort(uint16(30000+i)).Build(),
			Endpoint("web/TCP", "10.244.1."+itoa(i+1)+":80").Build())
		tries += syncUntilApplied(t, d, 50)
	}
	assert.Equal(t, faults.injected, tries-9)
	assert.Positive(t, faults.injected)
	assert.Len(t, r.Endpoints(), 9)
	for _, svc := range r.Services() {
		assert.EqualValues(t, 30008, svc.Ports[0].NodePort)
	}
}
