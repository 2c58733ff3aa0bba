package conntrack

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/nodeaddr"
)

const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// work passes over the table until no pass is due, or the reconciler's context ends.
func (r *Reconciler) work() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		f, ctx := r.nextDue(), r.ctx
		if f == nil || ctx.Err() != nil {
			close(r.ended)
			r.ended = nil
			return
		}
		if pause := time.Until(f.retryAt); pause > 0 {
			r.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			r.mu.Lock()
			continue
		}
		r.pass(ctx, f)
	}
}

// nextDue returns the family whose pass is due first, or nil. r.mu is held.
func (r *Reconciler) nextDue() *familyState {
	var next *familyState
	for _, f := range r.families {
		if !f.due.isEmpty() && !f.never && (next == nil || f.retryAt.Before(next.retryAt)) {
			next = f
		}
	}
	return next
}

// pass does one pass. It holds r.mu while it checks a flow, but not while it waits for the kernel.
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
		logger.V(2).Info("Deleted stale UDP flows", "family", f.family, "deleted", deleted,
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

// passOver passes over the table with the addresses that serve node ports now, if there are node ports.
func (r *Reconciler) passOver(ctx context.Context, f *familyState, only []Selection,
	nodePorts bool) (deleted int, err error) {
	if nodePorts {
		addresses, err := r.addresses()
		if err != nil {
			return 0, err
		}
		r.mu.Lock()
		f.index.nodeAddresses = addresses.Of(f.family)
		r.mu.Unlock()
	}
	return pass(ctx, r.opts.Table, f.family, only, func(flow Flow) bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return f.index.stale(flow)
	})
}

// maxPasses bounds how often an interrupted pass is repeated at once.
const maxPasses = 5

// pass passes over the table, again if it is interrupted.
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

func (r *Reconciler) addresses() (nodeaddr.Addresses, error) {
	if r.opts.Addresses != nil {
		return r.opts.Addresses(), nil
	}
	tracker, err := nodeaddr.NewTracker(nodeaddr.Options{Host: r.host})
	if err != nil {
		return nodeaddr.Addresses{}, err
	}
	return tracker.Addresses(), nil
}

// Wait returns when no pass is running, due or waiting for a retry, or when the reconciler's context and its goroutine
// have ended. It must not be called concurrently with Sync.
func (r *Reconciler) Wait() {
	r.mu.Lock()
	ended := r.ended
	r.mu.Unlock()
	if ended != nil {
		<-ended
	}
}
