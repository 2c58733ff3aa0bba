package testbed

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
)

// For a program that starts slowly, a change may take a few times as long. Results that are wrong after two probes are
// retried for a shorter time.
func TestSlowProgramsAreWaitedFor(t *testing.T) {
	f := &Figures{}
	assert.Equal(t, 10*time.Second, f.limit())
	assert.Equal(t, 3*time.Second, f.Settle())
	f.addStart(3 * time.Second)
	f.addStart(2500 * time.Millisecond)
	assert.Equal(t, 15*time.Second, f.limit())
	f.addWave(8 * time.Second)
	assert.Equal(t, time.Minute, f.limit())
	assert.Equal(t, 24*time.Second, f.Settle())
	f.addStart(time.Hour)
	assert.Equal(t, 3*time.Minute, f.limit())
	assert.Equal(t, 20*time.Second, f.Settle())
	assert.Equal(t, []time.Duration{3 * time.Second, 2500 * time.Millisecond, time.Hour}, f.Starts)
}

// The time of programs that were stopped stays, and one that becomes less for a moment is not counted twice.
func TestTheTimeOfStoppedPrograms(t *testing.T) {
	var s Spending
	h := &usingHost{}
	end := s.Add(h)
	before := s.Total()
	h.used = 5 * time.Hour
	assert.InDelta(t, 5*time.Hour, s.Total()-before, float64(time.Hour))
	h.used = 4 * time.Hour // a child has exited
	assert.InDelta(t, 5*time.Hour, s.Total()-before, float64(time.Second))
	h.used = 0
	s.started(h)
	h.used = time.Hour // it was started again
	assert.InDelta(t, 6*time.Hour, s.Total()-before, float64(time.Hour))
	h.used = 0 // and stopped
	assert.InDelta(t, 6*time.Hour, s.Total()-before, float64(time.Hour))
	end()
	assert.InDelta(t, 6*time.Hour, s.Total()-before, float64(time.Hour))
}

type usingHost struct {
	program.Host
	used time.Duration
}

func (h *usingHost) Usage() (time.Duration, int64) { return h.used, 0 }
