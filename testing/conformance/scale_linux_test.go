package conformance

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

func BenchmarkScale(b *testing.B) {
	Scale(b, Factory{New: func(context.Context, Env) (sink.Sink, error) {
		return sink.NewFullState(func(context.Context, *sink.Snapshot) error { return nil }), nil
	}})
}

// The benchmark measures what its documentation says: a full state, a restart, and one endpoint in each wave.
func TestScaleTellsTheBackendWhatItMeasures(t *testing.T) {
	needNetwork(t)
	var told []*sink.Recorder
	r, err := startScale(t.Context(),
		Factory{Lacks: []Feature{IPv6}, New: func(context.Context, Env) (sink.Sink, error) {
			told = append(told, new(sink.Recorder))
			return told[len(told)-1], nil
		}}, 20)
	require.NoError(t, err)
	require.NoError(t, r.waves(t.Context(), 2))
	require.NoError(t, r.stop())

	require.Len(t, told, 2, "a backend, and one after a restart")
	for _, rec := range told {
		waves := rec.TakeWaves()
		require.Len(t, waves[0].Calls, 1+20+20*scaleEndpoints)
		for _, w := range waves[1:] {
			assert.Len(t, w.Calls, 2)
		}
		assert.Empty(t, rec.Violations())
		assert.Empty(t, rec.BrokenInvariants())
		assert.Len(t, rec.Endpoints(), 20*scaleEndpoints)
	}
	assert.Positive(t, r.cost.full)
	assert.Positive(t, r.cost.restart)
	assert.Positive(t, r.cost.wave)
}

func TestScaleSaysWhetherTheCostFollowsChange(t *testing.T) {
	for _, c := range []struct {
		small, large time.Duration
		want         string
	}{
		{time.Millisecond, time.Millisecond,
			"takes 1 times the processor time at 5000 services that it takes at 100: the cost follows change"},
		{time.Millisecond, 2 * time.Millisecond, "the cost follows change"},
		{0, time.Microsecond, "the cost follows change"},
		{time.Millisecond, 5 * time.Millisecond, "the cost grows with the cluster, though less than that"},
		{time.Millisecond, 40 * time.Millisecond, "the cost follows the size of the cluster"},
	} {
		assert.Contains(t, scaleVerdict([]scaleCost{{services: 100, wave: c.small}, {services: 1000},
			{services: 5000, wave: c.large}}),
			c.want)
	}
}
