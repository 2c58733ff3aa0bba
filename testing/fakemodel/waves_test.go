package fakemodel

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/churn"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

func TestWaves(t *testing.T) {
	service := watch.Change{Object: kube.Service("web").ClusterIP("10.96.0.10").Build()}
	slice := kube.EndpointSlice("web").Endpoint("10.244.1.5").OnNode("n1")
	waves, err := Waves(t.Context(), localstate.Options{},
		[]watch.Change{service, {Object: slice.Build()}},
		[]watch.Change{service},
		[]watch.Change{{Object: service.Object, Deleted: true}})
	require.NoError(t, err)
	require.Len(t, waves, 2, "a batch that says nothing new is no wave")
	r := &sink.Recorder{}
	for _, wave := range waves {
		wave.Calls = append(wave.Calls, sink.Call{Op: sink.OpForceResync})
		Replay(r, wave)
		require.NoError(t, r.Sync(t.Context()))
	}
	require.Empty(t, r.Violations())
	var told []string
	for _, line := range r.TakeLines() {
		told = append(told, line[:min(len(line), 24)])
	}
	assert.Equal(t, []string{
		"SetNode n1", "SetService default/web c", "SetEndpoint default/web/", "ForceResync", "Sync",
		"DeleteEndpoint default/w", "DeleteService default/we", "ForceResync", "Sync",
	}, told)
	assert.Contains(t, waves[0].Lines()[2], "local", "the node is n1 by default")

	_, err = Waves(t.Context(), localstate.Options{}, []watch.Change{{Object: &corev1.Pod{}}})
	require.EqualError(t, err, "fakemodel: a *v1.Pod means nothing to a service proxy")
	_, err = Waves(t.Context(), localstate.Options{Families: []model.Family{5}})
	require.ErrorContains(t, err, "fakemodel: invalid options")
}

// A sink that lives through a cluster's life, with failures and restarts, ends with what a new one is told at once.
func TestChurnConverges(t *testing.T) {
	for seed := range uint64(3) {
		cluster, err := churn.New(churn.Options{Seed: seed, Services: 5, DualStack: seed > 0})
		require.NoError(t, err)
		faults := NewFaults(seed, 0.3)
		d := NewDriver(t, Options{NewSink: func() sink.Sink { return Faulty(sink.Tee(), faults) }})
		d.Update(cluster.Objects()...)
		silent := 0
		for i := range 400 {
			d.Update(cluster.Step().Changes...)
			if i%3 > 0 { // some waves hold several steps
				continue
			}
			d.SyncUntilApplied(100)
			if len(d.Transcript()) == 0 {
				silent++
			}
			if i%99 == 0 {
				d.Restart()
			}
		}
		d.SyncUntilApplied(100)

		fresh := NewDriver(t, Options{})
		fresh.Update(cluster.Objects()...)
		fresh.Sync()
		require.Equal(t, fresh.State().String(), d.State().String(), "seed %d", seed)
		assert.Positive(t, silent, "some steps mean nothing to this node")
		assert.Positive(t, faults.Injected())
	}
}

// BenchmarkWave is what a wave of a living cluster costs a sink that does nothing: the harness itself.
func BenchmarkWave(b *testing.B) {
	for _, services := range []int{100, 1000} {
		b.Run(fmt.Sprintf("%dx10", services), func(b *testing.B) {
			cluster, err := churn.New(churn.Options{Services: services, Endpoints: 10, Nodes: 100})
			require.NoError(b, err)
			batches := [][]watch.Change{cluster.Objects()}
			for range 1000 {
				batches = append(batches, cluster.Step().Changes)
			}
			waves, err := Waves(context.Background(), localstate.Options{}, batches...)
			require.NoError(b, err)
			s := sink.Tee()
			Replay(s, waves[0])
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				Replay(s, waves[1+i%(len(waves)-1)])
			}
		})
	}
}
