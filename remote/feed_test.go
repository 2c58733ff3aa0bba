package remote

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// pausingRun is a run with a different pause after each Sync.
type pausingRun struct {
	feed  *Feed
	pause time.Duration
	free  bool // the feed's lock was free at each call
}

func (r *pausingRun) MinInterval() time.Duration {
	if r.free = r.feed.mu.TryLock(); r.free {
		r.feed.mu.Unlock()
	}
	return r.pause
}

// A run's pause may differ after each Sync, so the feed asks for it each time. The run may then take its own lock,
// under which it calls the feed at other times.
func TestARunIsAskedAfterEachSyncHowLongItPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed, err := NewFeed(Options{Targets: []string{"unix:///tmp/brain.sock"}})
		require.NoError(t, err)
		feed.Applied(nil)
		assert.Equal(t, time.Now(), feed.pausedUntil, "a run that does not say it pauses for nothing")
		run := &pausingRun{feed: feed}
		feed.pauses = run
		for _, pause := range []time.Duration{time.Second, 0, 5 * time.Millisecond} {
			run.pause = pause
			feed.Applied(nil)
			assert.Equal(t, time.Now().Add(pause), feed.pausedUntil)
			assert.True(t, run.free)
			time.Sleep(time.Minute)
		}
	})
}
