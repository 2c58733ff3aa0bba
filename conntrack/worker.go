package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/syncing"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/nodeaddr"
)

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// maxPause is the longest pause between passes, and so limits how long a stale flow remains. Passes of up to 1.1 s
// (about 350,000 UDP flows) take a tenth of the time; with continuous changes a pass over a million flows (3 s) takes a
// quarter. Without the limit, these flows would wait for half a minute.
const maxPause = 10 * time.Second

// pauseAfter returns the pause after a pass over all due families.
func pauseAfter(cost time.Duration) time.Duration {
	return syncing.Pace{Floor: 5 * time.Millisecond, Most: maxPause}.After(cost)
}

// startWork makes the worker run the passes that are due. r.mu is held.
func (r *Reconciler) startWork() {
	at, due := r.nextDue()
	switch {
	case !due || r.ctx.Err() != nil:
	case r.ended == nil:
		r.ended = make(chan struct{})
		go r.work()
	case at.Before(r.sleepsUntil):
		select {
		case r.wake <- struct{}{}:
		default: // it is about to wake up
		}
	}
}

// work runs passes until none is due, or until the reconciler's context ends. A pass covers all due families, one after
// the other, and is followed by a pause; whatever becomes due in the meantime is one pass.
func (r *Reconciler) work() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		at, due := r.nextDue()
		if !due || r.ctx.Err() != nil {
			close(r.ended)
			r.ended = nil
			return
		}
		if time.Until(at) > 0 {
			r.sleep(at)
			continue
		}
		began := time.Now()
		for _, f := range r.families {
			if !f.never {
				f.addresses.take(began, func(a netip.Addr) { f.index.selectNodePorts(a, &f.due) })
			}
			if f.isDue() && !f.retryAt.After(began) && r.ctx.Err() == nil {
				r.pass(r.ctx, f)
			}
		}
		r.pausedUntil = time.Now().Add(pauseAfter(time.Since(began)))
	}
}

// sleep waits until a time comes, something is due earlier, or the reconciler's context ends. It releases r.mu, which
// the caller holds.
func (r *Reconciler) sleep(until time.Time) {
	r.sleepsUntil = until
	r.mu.Unlock()
	select {
	case <-r.ctx.Done():
	case <-r.wake:
	case <-time.After(time.Until(until)):
	}
	r.mu.Lock()
	r.sleepsUntil = time.Time{}
}

func (f *familyState) isDue() bool { return !f.due.isEmpty() && !f.never }

// nextDue returns when the family's next pass may begin, if there are flows to check.
func (f *familyState) nextDue() (at time.Time, due bool) {
	if f.never {
		return at, false
	}
	if due = f.isDue(); !due {
		at, due = f.addresses.next()
	}
	if at.Before(f.retryAt) {
		at = f.retryAt
	}
	return at, due
}

// nextDue returns the time of the next pass, if one is due. r.mu is held.
func (r *Reconciler) nextDue() (at time.Time, due bool) {
	for _, f := range r.families {
		if next, ok := f.nextDue(); ok && (!due || next.Before(at)) {
			at, due = next, true
		}
	}
	if at.Before(r.pausedUntil) {
		at = r.pausedUntil
	}
	return at, due
}

// pass runs one pass. It holds r.mu while it checks a flow, but not while it waits for the kernel.
func (r *Reconciler) pass(ctx context.Context, f *familyState) {
	only, revision, nodePorts := f.due.take(), f.index.revision, len(f.index.nodePorts) > 0
	r.mu.Unlock()

	start := time.Now()
	deleted, err := r.passOver(ctx, f, only, nodePorts)
	took := time.Since(start)
	r.metrics.passed(f.family, deleted, took, err)
	logger := klog.FromContext(ctx)

	r.mu.Lock()
	if err == nil {
		logger.V(4).Info("Deleted stale UDP flows", "family", f.family, "deleted", deleted,
			"selections", len(only), "duration", took)
		f.index.cleaned(revision)
		f.failures, f.retryAt = 0, time.Time{}
		return
	}
	f.due.addAll()
	if ctx.Err() != nil {
		return
	}
	if f.never = errors.Is(err, errors.ErrUnsupported); f.never {
		logger.Error(err, "Stale UDP flows will not be deleted", "family", f.family)
		return
	}
	pause := min(firstRetry<<min(f.failures, 6), lastRetry)
	f.failures++
	f.retryAt = time.Now().Add(pause)
	logger.Error(err, "Could not delete all stale UDP flows; trying again", "deleted", deleted,
		"retryIn", pause)
}

// passOver runs a pass. If Sync does not learn the addresses that serve node ports, it reads those of the host, if
// there are node ports.
func (r *Reconciler) passOver(ctx context.Context, f *familyState, only []Selection,
	nodePorts bool) (deleted int, err error) {
	if nodePorts && r.opts.Addresses == nil {
		tracker, err := nodeaddr.NewTracker(nodeaddr.Options{Host: r.host})
		if err != nil {
			return 0, err
		}
		now := tracker.Addresses()
		r.mu.Lock()
		r.noteAddresses(f, now, now)
		r.mu.Unlock()
	}
	return pass(ctx, r.opts.Table, f.family, only, func(flow Flow) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return f.index.stale(flow)
	})
}

// maxPasses limits how often an interrupted pass is repeated at once.
const maxPasses = 5

// pass runs a pass, and repeats it if it is interrupted.
func pass(
	ctx context.Context, table Table, family model.Family, only []Selection, stale func(Flow) bool,
) (deleted int, err error) {
	for range maxPasses {
		var n int
		n, err = table.DeleteUDP(ctx, family, only, stale)
		deleted += n
		if err == nil || !errors.Is(err, ErrInterrupted) || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		return deleted, fmt.Errorf("deleting stale %v UDP flows: %w", family, err)
	}
	return deleted, nil
}

// Wait returns when no pass is running, due or waiting for a retry, or when the reconciler's context and goroutine have
// ended. It must not be called concurrently with Sync.
func (r *Reconciler) Wait() {
	r.mu.Lock()
	ended := r.ended
	r.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
