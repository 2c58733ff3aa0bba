package judge

import (
	"context"
	"errors"
	"sync"
	"time"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/program"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/report"
)

// This file decides what is not judged because other programs kept the machine busy. See package machine.

const (
	// mostTries is the maximum number of tries of a case that cannot be judged, and mostStarts those of the first
	// start.
	mostTries, mostStarts = 3, 2
	// defaultQuietTimeout is how long another try waits for a quiet machine.
	defaultQuietTimeout = 10 * time.Second
)

// busyError says why the machine was too busy to judge anything.
type busyError struct{ why string }

func (e *busyError) Error() string { return e.why }

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

// watch makes control connections on a network, and counts the processor time of a host's programs, until the returned
// function is called.
func (j *judging) watch(n *network.Network, h program.Host) (end func()) {
	endControl, endCount := j.control(n), j.spent.Add(h)
	return func() {
		endControl()
		endCount()
	}
}

// tryFunc tries a flow.
type tryFunc = func(network.Attempt, network.Timeouts) network.Seen

// slowly returns a function that tries flows like try. While the machine is too busy, it waits as long where no answer
// is expected as where one is, because a late packet must not look like a dropped one.
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
func (j *judging) tryAgain(c cases.Case) bool {
	if c.Tries++; c.Tries >= mostTries {
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

// start calls f, and calls it again if it failed on a machine that was too busy. With quiet, a success on such a
// machine does not count either. If the machine was too busy at every try, the error is a busyError.
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

// observed starts the program in the default configuration on a quiet machine, and returns the configuration that it
// behaves like.
func (l *lane) observed(ctx context.Context) (found cluster.Setup, err error) {
	err = l.start(ctx, true, func() (err error) {
		l.end()
		if err = l.open(ctx, cluster.Setup{}); err == nil {
			found, err = observe(ctx, l.testbed)
		}
		return err
	})
	return found, err
}

// isOthersFault reports whether an error shows by its type that the program is not to blame.
func isOthersFault(err error) bool {
	var refused *program.RefusedError
	var setup *testbed.SetupError
	return errors.As(err, &refused) || errors.As(err, &setup)
}
