package conformance

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestSlowMachinesAreWaitedFor(t *testing.T) {
	for value, factor := range map[string]int{"": 1, "1": 1, "6": 6} {
		t.Setenv("KPL_TIMEOUT_FACTOR", value)
		p, err := timeoutsHere()
		require.NoError(t, err)
		assert.EqualValues(t, factor, p.Answer/defaultTimeouts().Answer, value)
		assert.Equal(t, defaultTimeouts().Quiet, p.Quiet, "where nothing must come, nothing is waited for")
	}
	for _, value := range []string{"x", "0", "-1"} {
		t.Setenv("KPL_TIMEOUT_FACTOR", value)
		_, err := timeoutsHere()
		require.ErrorContains(t, err, "KPL_TIMEOUT_FACTOR="+value)
	}
}

// In an emulated machine a program may need minutes to start, as judge.Options.StartTimeout allows. A Sync in this
// process that takes as long hangs.
func TestAProgramMayTakeLongerThanACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &testbed{sink: &lateSync{takes: 2 * callTimeout}}
		require.ErrorIs(t, b.sync(t.Context()), context.DeadlineExceeded)
		b.program = &program{}
		require.NoError(t, b.sync(t.Context()))
	})
}

// lateSync is a sink whose Sync takes a while.
type lateSync struct {
	sink.Sink
	takes time.Duration
}

func (s *lateSync) Sync(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(s.takes):
		return nil
	}
}
