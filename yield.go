package kubeproxy

import (
	"time"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

const (
	// mostYield bounds how long after a Sync others may read the dataplane undisturbed. In mode nftables, nft takes three
	// to eight seconds to read 10,000 services with 10 endpoints, disproportionately longer for more, and usually notices
	// only at the end that it has to begin again.
	mostYield = 45 * time.Second
	// mostBetween bounds the time from the end of one wait to the next, so that a program that reads for up to 20 s is
	// done within a minute. Otherwise that time is nine times the wait, so that waiting takes a tenth of the time.
	mostBetween = 40 * time.Second
)

// yields records how long the loop has waited for others that read the dataplane.
type yields struct {
	since time.Time     // the loop has been waiting; zero: it is not
	next  time.Time     // it may wait again
	until time.Time     // the sink need not be asked again
	cost  time.Duration // of asking, since the last Sync
}

// yield returns how long to wait before a Sync because the sink asks for that, see [sink.Yielder]. A single change does
// not wait: others have had time to read since the last Sync.
//
// The time that asking takes counts as part of the Sync that follows.
func (l *loop) yield(now time.Time) time.Duration {
	if wait := l.yields.until.Sub(now); wait > 0 {
		return wait
	}
	y, ok := l.opts.Sink.(sink.Yielder)
	if !ok || l.lastEnd.IsZero() || now.Before(l.yields.next) {
		return 0
	}
	limit := min(mostYield, l.opts.RetryInterval*3/2) // health has a limit of two intervals
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
		if left <= 0 { // the listing may never end
			most = 9 * limit
		}
		pause := syncing.Pace{Most: most}.After(now.Sub(since))
		l.yields = yields{next: now.Add(pause), cost: l.yields.cost}
	}
	l.yields.until = now.Add(max(wait, 0))
	return max(wait, 0)
}
