package testbed

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
		p, err := TimeoutsHere()
		require.NoError(t, err)
		assert.EqualValues(t, factor, p.Answer/DefaultTimeouts().Answer, value)
		assert.Equal(t, DefaultTimeouts().Quiet, p.Quiet, "where nothing must come, nothing is waited for")
	}
	for _, value := range []string{"x", "0", "-1"} {
		t.Setenv("KPL_TIMEOUT_FACTOR", value)
		_, err := TimeoutsHere()
		require.ErrorContains(t, err, "KPL_TIMEOUT_FACTOR="+value)
	}
}

// In an emulated machine a program may need minutes to start, as judge.Options.StartTimeout allows. A Sync in this
// process that takes as long hangs.
func TestAProgramMayTakeLongerThanACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &Testbed{Sink: &lateSync{takes: 2 * callTimeout}}
		require.ErrorIs(t, b.Sync(t.Context()), context.DeadlineExceeded)
		b.Program = &Program{}
		require.NoError(t, b.Sync(t.Context()))
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
