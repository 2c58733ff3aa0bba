package kubeproxy

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Others that read the dataplane have firstYield since the last Sync. In mode nftables, nft takes about three seconds
// to read 10,000 services with 10 endpoints, and mostly notices only then that it has to begin again. Who has not come
// to an end in that time, on a machine that is busy, has twice as long the next time.
const (
	firstYield = 10 * time.Second
	maxYield   = 20 * time.Second
)

// yields records how long the loop has waited for others that read the dataplane.
type yields struct {
	since time.Time     // the loop has been waiting; zero: it is not
	next  time.Time     // it may wait again
	until time.Time     // the sink need not be asked again
	limit time.Duration // firstYield to maxYield; zero: firstYield
	cost  time.Duration // of asking, since the last Sync
}

// yield returns how long to wait before a Sync because the sink asks for that, see [sink.Yielder]. A change that comes
// alone waits for nobody: since the last Sync others have had their time.
//
// What asking costs counts as a part of the Sync that follows.
func (l *loop) yield(now time.Time) time.Duration {
	if wait := l.yields.until.Sub(now); wait > 0 {
		return wait
	}
	y, ok := l.opts.Sink.(sink.Yielder)
	if !ok || l.lastEnd.IsZero() || now.Before(l.yields.next) {
		return 0
	}
	limit := max(l.yields.limit, firstYield)
	left := limit - now.Sub(l.lastEnd)
	var wait time.Duration
	if left > 0 {
		began := time.Now()
		wait = min(y.Yield(), left)
		l.yields.cost += time.Since(began)
	}
	since := l.yields.since
	switch {
	case wait > 0 && since.IsZero():
		l.yields.since = now
	case wait == 0 && !since.IsZero():
		pause := syncing.Pace{Most: 9 * maxYield}.After(now.Sub(since)) // waiting takes a tenth of the time at most
		l.yields = yields{next: now.Add(pause), cost: l.yields.cost}
		if left <= 0 {
			l.yields.limit = min(2*limit, maxYield)
		}
	}
	l.yields.until = now.Add(max(wait, 0))
	return max(wait, 0)
}
