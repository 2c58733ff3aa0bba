package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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
