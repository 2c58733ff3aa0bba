package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/sys/unix"
)

// The counters are those of this machine: the time that this test uses is in them.
func TestTheCountersOfThisMachine(t *testing.T) {
	s := Here(func() time.Duration { return 0 })
	assert.Positive(t, s.Processors)
	assert.GreaterOrEqual(t, s.Load(), 0.0)
	before := s.Counters()
	assert.Positive(t, before.Runnable)
	var now Reading
	for now = s.Counters(); now.Busy < before.Busy+3*tick; now = s.Counters() { // busy itself
	}
	assert.GreaterOrEqual(t, now.All-before.All, now.Busy-before.Busy)
	assert.GreaterOrEqual(t, now.Waited, before.Waited)
}

// On a machine with more processors than the judge may use, only these count: others may keep one busy, and leave the
// rest idle.
func TestOnlyTheProcessorsOfTheJudgeCount(t *testing.T) {
	const stat = `cpu  120 30 50 1600 0 0 0 20 0 0
cpu0 100 20 30 40 0 0 0 10 0 0
cpu1 20 10 20 760 0 0 0 10 0 0
cpu2 0 0 0 800 0 0 0 0 0 0
cpu3 0 0 0 800 0 0 0 0 0 0
intr 5
procs_running 10
`
	var one, all, renumbered unix.CPUSet
	one.Set(0)
	for n := range 4 {
		all.Set(n)
	}
	renumbered.Set(0)
	renumbered.Set(7)
	assert.Equal(t, Reading{All: 2 * time.Second, Busy: 1500 * time.Millisecond, Steal: 100 * time.Millisecond,
		Runnable: 3}, parseStat([]byte(stat), &one))
	whole := Reading{All: 26200 * time.Millisecond, Busy: 2 * time.Second, Steal: 200 * time.Millisecond, Runnable: 10}
	for _, set := range []*unix.CPUSet{&all, &renumbered, {}} {
		assert.Equal(t, whole, parseStat([]byte(stat), set))
	}
}
