package kubeproxy

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
)

// What bounds the pause after a Sync where there is no MinInterval: there are at most 200 Syncs a second, and a change
// never waits for longer than a second.
const (
	leastPause = 5 * time.Millisecond
	mostPause  = time.Second
)

const firstRetry = 100 * time.Millisecond

// pauseAfter returns the time after a Sync that took cost in which there is no other (S43).
func (o Options) pauseAfter(cost time.Duration) time.Duration {
	if o.MinInterval == 0 {
		return syncing.Pace{Floor: leastPause, Most: mostPause}.After(cost)
	}
	return max(o.MinInterval, 0)
}

// pauseWithoutSync is pauseAfter for work after which nothing is left to apply. No Sync follows it, so that MinInterval
// does not count, but such work takes a tenth of the time as well.
func (o Options) pauseWithoutSync(cost time.Duration) time.Duration {
	if o.MinInterval == 0 {
		return syncing.Pace{Most: mostPause}.After(cost)
	}
	return 0
}

// retryAfter returns the time until the next attempt after the given number of failed ones.
func (o Options) retryAfter(attempts int) time.Duration {
	pause := max(o.MinInterval, firstRetry)
	for i := 1; i < attempts && pause < o.RetryInterval; i++ {
		pause *= 2
	}
	return min(pause, max(o.RetryInterval, o.MinInterval))
}
