package kubeproxy

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

const (
	// mostYield is the time since the last Sync that others have to read the dataplane. In mode nftables, nft takes three
	// to eight seconds to read 10,000 services with 10 endpoints, more than in proportion for more, and mostly notices
	// only then that it has to begin again.
	mostYield = 45 * time.Second
	// mostBetween is the longest time until somebody is waited for again after the one before came to its end, so that
	// whoever reads for up to 20 s is done within a minute. Waiting takes a tenth of the time at most where it follows
	// from that.
	mostBetween = 40 * time.Second
)

// yields records how long the loop has waited for others that read the dataplane.
type yields struct {
	since time.Time     // the loop has been waiting; zero: it is not
	next  time.Time     // it may wait again
	until time.Time     // the sink need not be asked again
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
	limit := min(mostYield, l.opts.RetryInterval*3/2) // whoever watches the health waits for longer than that
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
		most := mostBetween
		if left <= 0 { // nobody knows whether it will ever come to its end
			most = 9 * limit
		}
		pause := syncing.Pace{Most: most}.After(now.Sub(since))
		l.yields = yields{next: now.Add(pause), cost: l.yields.cost}
	}
	l.yields.until = now.Add(max(wait, 0))
	return max(wait, 0)
}
