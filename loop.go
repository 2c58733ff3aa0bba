package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// loop is the goroutine of a run that calls the sink.
type loop struct {
	opts     Options
	log      klog.Logger
	handler  *feedHandler
	progress *progress

	feedDone    bool
	asked       bool      // for a Sync
	awaited     bool      // a Sync that was asked for has not succeeded yet
	lastEnd     time.Time // of the last Sync; zero before the first
	pausedUntil time.Time // no work before this time
	yields      yields
	lastFull    time.Time // end of the last full Sync, successful or not
	applied     bool      // a Sync has applied every family
	failed      failures
}

// run calls step whenever there is work, until ctx ends or the loop cannot go on.
func (l *loop) run(ctx context.Context, feedEnded <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		work, wait := l.next(now)
		switch work {
		case nothing:
		case retry: // it waits for nobody: the retry interval is a promise
			wait = 0
		default:
			wait = l.yield(now)
		}
		if work != nothing && wait == 0 {
			if err := l.step(ctx, work); err != nil || ctx.Err() != nil {
				return err
			}
			continue
		}
		if timer.Stop(); wait > 0 {
			timer.Reset(wait)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.handler.wake:
		case <-l.opts.SyncRequests:
			l.asked = true
		case <-timer.C:
		case err := <-feedEnded:
			l.feedDone, feedEnded = true, nil
			switch synced, _ := l.handler.pending(); {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case !synced:
				return errors.New("the feed ended before it had a complete state")
			}
			// Nothing will change any more, but what is applied still has to be repaired and retried.
		}
	}
}

// work is what a step does. Each kind includes the ones before it.
type work int

const (
	nothing work = iota
	changes      // hand over what changed; Sync if anything differs
	always       // Sync in any case
	retry        // ask the sink to resync what failed
	resync       // ask the sink to resync everything
)

// next returns the work that is due or, if none is, how long until some will be; 0 if that is not known (S43, S44).
// Nothing is due before the state is complete.
func (l *loop) next(now time.Time) (due work, wait time.Duration) {
	synced, pending := l.handler.pending()
	if !synced {
		return nothing, 0
	}
	select {
	case <-l.opts.SyncRequests:
		l.asked = true
	default:
	}
	l.asked = l.asked || l.opts.Syncer.waits()
	consider := func(w work, at time.Time) {
		if at.Before(l.pausedUntil) {
			at = l.pausedUntil
		}
		if !at.After(now) {
			due = max(due, w)
		} else if d := at.Sub(now); wait == 0 || d < wait {
			wait = d
		}
	}
	if l.lastEnd.IsZero() || l.asked { // at first for an empty cluster, too
		consider(always, now)
	}
	if pending {
		consider(changes, now)
	}
	if at := l.failed.retryAt(); !at.IsZero() {
		consider(retry, at)
	}
	if !l.lastFull.IsZero() && l.opts.ResyncInterval > 0 {
		consider(resync, l.lastFull.Add(l.opts.ResyncInterval))
	}
	return due, wait
}

// step hands over what changed and does the work. It returns an error only if the run has to end.
func (l *loop) step(ctx context.Context, work work) error {
	l.awaited = l.awaited || l.asked
	result := ErrRunEnded // what waiting calls get if the Sync is interrupted
	if l.asked {
		round := l.opts.Syncer.take()
		defer func() { round.finish(result) }()
	}
	l.asked = false // later requests are for the next step
	began := time.Now()
	if l.awaited {
		ctx = syncing.MarkRequested(ctx)
	}
	changed := l.handler.flush(l.opts.Sink)
	if work == changes && !changed.Any() {
		l.pausedUntil = time.Now().Add(l.opts.pauseWithoutSync(time.Since(began) + l.yields.cost))
		l.yields.cost = 0
		l.progress.unchanged()
		l.opts.Feed.Applied(l.failed.last) // there was nothing to apply but what failed before
		return nil
	}

	first := l.lastEnd.IsZero() // hence a full one
	if !first {
		l.askForResync(work)
	}
	full := first || work >= retry
	start := time.Now()
	err := l.opts.Sink.Sync(ctx)
	end := time.Now()
	pausedUntil := end.Add(l.opts.pauseAfter(end.Sub(began) + l.yields.cost))
	l.lastEnd, l.pausedUntil, l.yields.cost = end, pausedUntil, 0
	l.handler.pausedUntil.Store(&pausedUntil)
	if err != nil && ctx.Err() != nil {
		return nil // the Sync was interrupted; the caller checks ctx, too
	}
	result = err
	l.progress.synced(full, start, end, err)
	l.opts.Feed.Applied(err)
	if permanent := sink.Permanent(err); permanent != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if first || work == resync {
		l.lastFull = end // also if it failed: the retry is for that
	}
	l.failed.note(err, work >= retry, end, l.opts)
	l.awaited = l.awaited && l.failed.failed != 0 // a sink in front may have failed before it called the next
	for _, f := range l.opts.Feed.Families() {
		l.progress.metrics.setFailed(f, l.failed.counts[f])
	}
	if l.failed.failed == 0 && !l.applied {
		l.applied = true
		l.ready(end.Sub(start))
	}
	if err == nil {
		l.log.V(4).Info("Synced", "services", changed.Services, "endpoints", changed.Endpoints,
			"full", full, "duration", end.Sub(start))
	}
	return nil
}

// ready is called once, after the first Sync that applied every family. It does not wait for service ports that the
// dataplane refuses: these may stay refused for ever, and one tenant's would keep the whole node from being ready.
func (l *loop) ready(duration time.Duration) {
	if refused := len(l.failed.known); refused > 0 {
		l.log.Info("Everything is applied for the first time, except some service ports",
			"failedServicePorts", refused, "duration", duration)
	} else {
		l.log.Info("Everything is applied for the first time", "duration", duration)
	}
	if l.opts.OnReady != nil {
		l.opts.OnReady()
	}
}

// askForResync tells the sink which part of its record of the dataplane the next Sync must not trust.
func (l *loop) askForResync(work work) {
	all, _ := l.opts.Sink.(sink.Resyncer)
	failed, _ := l.opts.Sink.(sink.FailureResyncer)
	switch {
	case work == retry && failed != nil:
		failed.ResyncFailed()
	case all != nil && (work == resync || work == retry && l.failed.families.pending()):
		all.ForceResync()
	}
}
