package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/machine"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/judge"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// What is not judged because other programs kept the machine busy. See package machine.

const (
	// mostTries is how often a case is tried that cannot be judged, and mostStarts how often the first start is.
	mostTries, mostStarts = 3, 2
	// defaultQuietTimeout is how long a new try waits for a quiet machine.
	defaultQuietTimeout = 10 * time.Second
	// mostExtension is how many times as long a wait may become on a busy machine.
	mostExtension = 4
)

// busyError says why the machine was too busy to judge anything.
type busyError struct{ why string }

func (e *busyError) Error() string { return e.why }

// spending counts the processor time of the judge and its programs.
type spending struct {
	mu    sync.Mutex
	ended time.Duration                // of programs that were stopped
	most  map[judge.Host]time.Duration // of those that may run
}

// add begins to count a host's programs. The returned function ends it.
func (s *spending) add(h judge.Host) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.most == nil {
		s.most = map[judge.Host]time.Duration{}
	}
	s.most[h] = 0
	return func() {
		s.stopped(h)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.most, h)
	}
}

// stopped notes that a host's program has been stopped: the next one's time begins at 0.
func (s *spending) stopped(h judge.Host) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if most, counted := s.most[h]; counted {
		s.ended += most
		s.most[h] = 0
	}
}

// total returns the time so far.
func (s *spending) total() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := judgesOwn()
	for h, most := range s.most {
		now, _ := h.Usage()
		s.most[h] = max(most, now) // it is less for a moment when a child has exited, and its time is rounded
		sum += s.most[h]
	}
	return sum + s.ended
}

// judgesOwn returns the processor time of this process.
func judgesOwn() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// control makes control connections on a network until the returned function is called.
func (j *judging) control(n *network.Network) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	flows := n.NewControl(j.Seed)
	c := j.machine.NewControl(func() bool { return flows.Try(network.Timeouts{Answer: 2 * time.Second}) })
	var wg sync.WaitGroup
	wg.Go(func() { c.Run(ctx) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// tryFunc tries a flow.
type tryFunc = func(network.Attempt, network.Timeouts) network.Seen

// slowly returns a function that, while the machine is too busy, waits as long where nothing should come as where
// something should: what is late must not look dropped.
func (j *judging) slowly(try tryFunc) tryFunc {
	return func(f network.Attempt, p network.Timeouts) network.Seen {
		if j.machine.BusyTime(time.Now().Add(-time.Second)) > 0 {
			p.Quiet = max(p.Quiet, p.Answer)
		}
		return try(f, p)
	}
}

// withMachine runs f while the machine is watched.
func (j *judging) withMachine(f func() error) error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { j.machine.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	return f()
}

// tryAgain puts a case that was not judged at the end of the queue, unless it has been tried often enough.
func (j *judging) tryAgain(c testCase) bool {
	if c.tries++; c.tries >= mostTries {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.queue = append(j.queue, c)
	return true
}

// judgeNone reports all cases of the queue as not judged.
func (j *judging) judgeNone(why string) {
	for _, c := range j.queue {
		j.add(result(c, report.NotJudged, why))
	}
	j.queue = nil
}

// start calls f until it succeeds on a machine that is not too busy for it. An error on a machine that was too busy at
// each of several tries is a busyError; so is a result that quiet requires a quiet machine for.
func (j *judging) start(ctx context.Context, quiet bool, f func() error) error {
	for tries := 1; ; tries++ {
		began := time.Now()
		err := f()
		why := ""
		if (err != nil || quiet) && !isOthersFault(err) {
			why = j.machine.Busy(began)
		}
		if why == "" || ctx.Err() != nil {
			return err
		}
		if tries == mostStarts {
			return &busyError{why}
		}
		j.say("%s: start the program again", why)
		j.machine.AwaitQuiet(ctx, j.quietTimeout)
	}
}

// isOthersFault reports whether an error says by itself that the program is not to blame.
func isOthersFault(err error) bool {
	var refused *judge.RefusedError
	var place *placeError
	return errors.As(err, &refused) || errors.As(err, &place)
}

// overdue reports whether a wait has lasted longer than its limit. Time in which the machine was too busy does not
// count, up to a multiple of the limit.
func overdue(w *machine.Watch, since time.Time, limit time.Duration) bool {
	passed := time.Since(since)
	return passed > limit && (w == nil || passed-min(w.BusyTime(since), mostExtension*limit) > limit)
}
