package syncing

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAPauseFollowsFromTheCost(t *testing.T) {
	p := Pace{Floor: 5 * time.Millisecond, Most: time.Second}
	for _, c := range []struct {
		name        string
		cost, pause time.Duration
	}{
		{"cheap work leaves the shortest pause", 100 * time.Microsecond, 5 * time.Millisecond},
		{"it takes a tenth of the time", 20 * time.Millisecond, 180 * time.Millisecond},
		{"expensive work leaves the longest pause", 150 * time.Millisecond, time.Second},
		{"so does work that took days", math.MaxInt64, time.Second},
		{"a clock that goes back is no reason not to pause", -time.Hour, 5 * time.Millisecond},
	} {
		assert.Equal(t, c.pause, p.After(c.cost), c.name)
	}
}
