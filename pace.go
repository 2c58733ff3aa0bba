package kubeproxy

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
)

// The bounds of the pause after a Sync if MinInterval is not set: there are at most 200 Syncs a second, and no change
// waits for more than a second because of the pause.
const (
	leastPause = 5 * time.Millisecond
	mostPause  = time.Second
)

// pauseAfter returns the pause after a Sync that took cost (S43). Without a MinInterval it is nine times the cost, so
// that Syncs take a tenth of the time, between leastPause and mostPause.
func (o Options) pauseAfter(cost time.Duration) time.Duration {
	if o.MinInterval == 0 {
		return syncing.Pace{Floor: leastPause, Most: mostPause}.After(cost)
	}
	return max(o.MinInterval, 0)
}

// pauseWithoutSync is pauseAfter for work that leaves nothing to apply. No Sync follows, so MinInterval does not count,
// but such work, too, takes at most a tenth of the time.
func (o Options) pauseWithoutSync(cost time.Duration) time.Duration {
	if o.MinInterval == 0 {
		return syncing.Pace{Most: mostPause}.After(cost)
	}
	return 0
}
