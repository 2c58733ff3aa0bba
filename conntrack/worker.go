package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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

// maxRest is the longest pause between passes, and so limits how long a stale flow remains. Passes of up to 1.1 s
// (about 350,000 UDP flows) take a tenth of the time; with continuous changes a pass over a million flows (3 s) takes a
// quarter. Without the limit, these flows would wait for half a minute.
const maxRest = 10 * time.Second

// rest returns the pause after a pass over all due families.
func rest(cost time.Duration) time.Duration {
	return syncing.Pace{Floor: 5 * time.Millisecond, Most: maxRest}.After(cost)
}

// work runs passes until none is due, or until the reconciler's context ends. A pass covers all due families, one after
// the other, and is followed by a rest; whatever becomes due in the meantime is one pass.
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
		if pause := time.Until(at); pause > 0 {
			r.sleep(pause)
			continue
		}
		began := time.Now()
		for _, f := range r.families {
			if f.isDue() && !f.retryAt.After(began) && r.ctx.Err() == nil {
				r.pass(r.ctx, f)
			}
		}
		r.restsUntil = time.Now().Add(rest(time.Since(began)))
	}
}

// sleep waits until the pause or the reconciler's context ends. It releases r.mu, which the caller holds.
func (r *Reconciler) sleep(pause time.Duration) {
	ctx := r.ctx
	r.mu.Unlock()
	defer r.mu.Lock()
	select {
	case <-ctx.Done():
	case <-time.After(pause):
	}
}

func (f *familyState) isDue() bool { return !f.due.isEmpty() && !f.never }

// nextDue returns the time of the next pass, if one is due. r.mu is held.
func (r *Reconciler) nextDue() (at time.Time, due bool) {
	for _, f := range r.families {
		if f.isDue() && (!due || f.retryAt.Before(at)) {
			at, due = f.retryAt, true
		}
	}
	if at.Before(r.restsUntil) {
		at = r.restsUntil
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

// passOver runs a pass with the current addresses that serve node ports, if there are node ports.
func (r *Reconciler) passOver(ctx context.Context, f *familyState, only []Selection,
	nodePorts bool) (deleted int, err error) {
	if nodePorts {
		addresses, err := r.addresses()
		if err != nil {
			return 0, err
		}
		rewritten := slices.DeleteFunc(addresses.Of(f.family), func(a netip.Addr) bool {
			return a.IsLoopback() && (a.Is6() || !r.opts.LocalhostNodePorts)
		})
		r.mu.Lock()
		f.index.nodeAddresses = rewritten
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
