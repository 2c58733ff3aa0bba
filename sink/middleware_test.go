package sink_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// full is a sink with all the optional methods.
type full interface {
	sink.Sink
	sink.NodeSetter
	sink.Resyncer
	sink.FailureResyncer
}

func TestMiddlewareForwardsTheOptionalCallsToSinksThatHaveThem(t *testing.T) {
	for _, c := range []struct {
		name string
		wrap func(sink.Sink) full
	}{
		{"Tee", func(s sink.Sink) full { return sink.Tee(s) }},
		{"Filter", func(s sink.Sink) full { return sink.Filter(s, sink.Keep{Service: odd}) }},
		{"Forward", func(s sink.Sink) full { return sink.NewForward(s) }},
		{"RememberServices", func(s sink.Sink) full { return rememberAll(s) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var r, plain sink.Recorder
			want, wantPlain := allLines, bareLines
			if c.name == "Filter" { // makes only calls that change something, at Sync
				want = []string{allLines[0], allLines[5], allLines[3], allLines[4], allLines[6]}
				wantPlain = bareLines[2:]
			}
			require.NoError(t, everyCall(c.wrap(&r)))
			assert.Equal(t, want, r.TakeLines())
			require.NoError(t, everyCall(c.wrap(bare{&plain})))
			assert.Equal(t, wantPlain, plain.TakeLines())

			broken := errors.New("broken")
			r.FailNext(broken)
			wrapped := c.wrap(&r)
			assert.ErrorIs(t, everyCall(wrapped), broken)
			r.TakeWaves()
			wrapped.ResyncFailed()
			require.NoError(t, wrapped.Sync(t.Context()))
			wrapped.ResyncFailed()
			require.NoError(t, wrapped.Sync(t.Context()))
			assert.Equal(t, []string{"ResyncFailed", "Sync", "Sync"}, r.TakeLines(), "only after a failure")
		})
	}
}
