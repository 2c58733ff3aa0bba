package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"time"

	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// loop is the only goroutine of a Runner that calls the sink.
type loop struct {
	*Runner
	progress *progress

	sourceDone   bool
	awaitingCIDR time.Time // since when only the node's podCIDRs are missing
	lastEnd      time.Time // of the last Sync; zero before the first
	lastFull     time.Time // end of the last full Sync, successful or not
	lastErr      error     // of the last Sync
	failed       failures
}

// run calls step whenever there is work, until ctx ends or the loop cannot go on.
func (l *loop) run(ctx context.Context, sourceEnded <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		work, wait := nothing, time.Duration(0)
		ready, err := l.ready(now)
		switch {
		case err != nil:
			return err
		case ready:
			work, wait = l.next(now)
		case !l.awaitingCIDR.IsZero() && l.opts.NodeCIDRTimeout > 0:
			wait = l.awaitingCIDR.Add(l.opts.NodeCIDRTimeout).Sub(now)
		}
		if work != nothing {
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
		case <-l.wake:
		case <-timer.C:
		case err := <-sourceEnded:
			l.sourceDone, sourceEnded = true, nil
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("source: %w", err)
			}
			l.mu.Lock()
			synced := l.synced
			l.mu.Unlock()
			if !synced {
				return errors.New("source: it ended before everything was listed")
			}
			// Nothing will change any more, but what is applied still has to be repaired and retried.
		}
	}
}

// ready reports whether the sink may be called: only once everything is listed and, if they are needed to detect local
// traffic, the node's podCIDRs are known. It returns an error if the podCIDRs do not come in time. Once ready, the loop
// stays ready.
func (l *loop) ready(now time.Time) (bool, error) {
	l.mu.Lock()
	synced, awaits := l.synced, l.state.AwaitsNodeCIDR()
	l.mu.Unlock()
	switch {
	case !synced:
		return false, nil
	case !awaits:
		l.health.SetPhase(health.Serving)
		return true, nil
	case l.awaitingCIDR.IsZero():
		l.awaitingCIDR = now
		l.health.SetPhase(health.AwaitingNodeCIDR)
		l.log.Info("The Node has no podCIDRs, which are needed to detect local traffic: waiting for them before "+
			"anything is applied", "node", l.opts.State.NodeName, "timeout", l.opts.NodeCIDRTimeout)
	}
	if waited := now.Sub(l.awaitingCIDR); l.opts.NodeCIDRTimeout > 0 && waited >= l.opts.NodeCIDRTimeout {
		return false, fmt.Errorf("node %q has no podCIDRs after %v: local traffic cannot be detected",
			l.opts.State.NodeName, waited)
	}
	return false, nil
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

// next returns the work that is due or, if none is, the time until some will be: 0 if that is not known (S43, S44).
func (l *loop) next(now time.Time) (due work, wait time.Duration) {
	l.mu.Lock()
	pending := l.state.Pending().Any()
	l.mu.Unlock()
	earliest := l.lastEnd.Add(l.opts.MinInterval)
	consider := func(w work, at time.Time) {
		if at = later(earliest, at); !at.After(now) {
			due = max(due, w)
		} else if d := at.Sub(now); wait == 0 || d < wait {
			wait = d
		}
	}
	if l.lastEnd.IsZero() {
		consider(always, now) // for an empty cluster, too
	}
	if pending {
		consider(changes, now)
	}
	if asked := work(l.asked.Load()); asked != nothing {
		consider(asked, now)
	}
	if at := l.failed.retryAt(); !at.IsZero() {
		consider(retry, at)
	}
	if !l.lastFull.IsZero() && l.opts.ResyncInterval > 0 {
		consider(resync, l.lastFull.Add(l.opts.ResyncInterval))
	}
	return due, wait
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// step hands over what changed and does the work. It returns an error only if there is no point in going on.
func (l *loop) step(ctx context.Context, due work) error {
	work := max(due, work(l.asked.Swap(int32(nothing)))) // later requests are for the next step
	l.mu.Lock()
	changed := l.state.Flush(l.opts.Sink)
	l.progress.flushed(changed, l.state.NoLocalEndpoints())
	l.mu.Unlock()
	if work == changes && !changed.Any() {
		l.progress.unchanged()
		l.applied(l.lastErr) // there was nothing to apply but what failed before
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
	l.lastEnd = end
	if err != nil && ctx.Err() != nil {
		return nil //nolint:nilerr // the Sync was interrupted; the caller checks ctx, too
	}
	l.progress.synced(full, start, end, err)
	l.lastErr = err
	l.applied(err)
	if permanent := sink.Permanent(err); permanent != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if first || work == resync {
		l.lastFull = end // also if it failed: the retry is for that
	}
	l.failed.note(err, work >= retry, end, l.opts)
	if err == nil {
		l.log.V(2).Info("Synced", "services", changed.Services, "endpoints", changed.Endpoints,
			"full", full, "duration", end.Sub(start))
	}
	return nil
}

// applied tells a Feed the outcome.
func (l *loop) applied(err error) {
	if l.opts.Feed != nil {
		l.opts.Feed.Applied(err)
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
