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
		t.Setenv("KPL_PATIENCE", value)
		p, err := patienceHere()
		require.NoError(t, err)
		assert.EqualValues(t, factor, p.Answer/defaultPatience().Answer, value)
		assert.Equal(t, defaultPatience().Quiet, p.Quiet, "where nothing must come, nothing is waited for")
	}
	for _, value := range []string{"x", "0", "-1"} {
		t.Setenv("KPL_PATIENCE", value)
		_, err := patienceHere()
		require.ErrorContains(t, err, "KPL_PATIENCE="+value)
	}
}

// A program in an emulated machine may need minutes to start, as JudgeOptions.StartTimeout allows; a Sync in this
// process that takes so long hangs.
func TestAProgramMayTakeLongerThanACall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &session{sink: &lateSync{takes: 2 * callTimeout}}
		require.ErrorIs(t, s.sync(t.Context()), context.DeadlineExceeded)
		s.program = &program{}
		require.NoError(t, s.sync(t.Context()))
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
