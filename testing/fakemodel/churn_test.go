package fakemodel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/churn"
)

// A sink that lives through a cluster's life, with failures and restarts, ends with what a new one is told at once.
func TestChurnConverges(t *testing.T) {
	for seed := range uint64(3) {
		cluster, err := churn.New(churn.Options{Seed: seed, Services: 5, DualStack: seed > 0})
		require.NoError(t, err)
		faults := NewFaults(seed, 0.3)
		d := NewDriver(t, Options{NewSink: func() sink.Sink { return faulty(sink.Tee(), faults) }})
		d.Update(cluster.Objects()...)
		silent := 0
		for i := range 400 {
			d.Update(cluster.Step().Changes...)
			if i%3 > 0 { // some waves hold several steps
				continue
			}
			syncUntilApplied(t, d, 100)
			if len(d.Transcript()) == 0 {
				silent++
			}
			if i%99 == 0 {
				d.Restart()
			}
		}
		syncUntilApplied(t, d, 100)

		fresh := NewDriver(t, Options{})
		fresh.Update(cluster.Objects()...)
		fresh.Sync()
		require.Equal(t, fresh.State().String(), d.State().String(), "seed %d", seed)
		assert.Positive(t, silent, "some steps mean nothing to this node")
		assert.Positive(t, faults.injected)
	}
}
