package userspace

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWhatAllListenersFindOutIsLoggedNowAndThen(t *testing.T) {
	var s logLimiter
	lines := 0
	now := time.Now()
	for range 3 {
		for range 1000 { // listeners
			if s.due(now) {
				lines++
			}
		}
		now = now.Add(logPause)
	}
	require.Equal(t, 3, lines)
}

// Limits fit into the file descriptors of a process that does more than serve node ports.
func TestLimitsFitIntoTheFilesOfTheProcess(t *testing.T) {
	o := tuning{}.within(24000)
	require.Equal(t, []int{1000, 4096, 6000}, []int{o.MaxConnections, o.MaxFlows, o.MaxListeners})
	o = tuning{MaxConnections: 7}.within(1 << 30)
	require.Equal(t, []int{7, 4096, 32768}, []int{o.MaxConnections, o.MaxFlows, o.MaxListeners})
	o = tuning{}.within(0)
	require.Equal(t, []int{1, 1, 1}, []int{o.MaxConnections, o.MaxFlows, o.MaxListeners})
}
