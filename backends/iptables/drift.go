package iptables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// Nobody tells when somebody else changes rules, and reading them all is dear. So the kernel's generation is asked for, which
// costs microseconds; only if that is not as it was left everything is read and compared. It may be another one for
// reasons that are none of ours: when everything was read for nothing, the next look waits for a hundred times as long as that
// took.
const restAfterReading = 100

// The pauses between attempts to repair what cannot be repaired.
const (
	minRepairPause = time.Second
	maxRepairPause = 30 * time.Second
)

// watch looks for changes that somebody else makes to our chains, and repairs them.
func (b *Backend) watch(ctx context.Context) {
	defer close(b.done)
	if b.options.DriftInterval < 0 {
		return
	}
	ticker := time.NewTicker(b.options.DriftInterval)
	defer ticker.Stop()
	var notBefore time.Time
	pause := time.Duration(0) // after a failure
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			if now.Before(notBefore) {
				continue
			}
		}
		rest, err := b.lookForDrift(ctx)
		if err == nil || ctx.Err() != nil {
			pause = 0
		} else {
			pause = min(max(2*pause, minRepairPause), maxRepairPause)
			klog.FromContext(ctx).Error(err, "Repairing what was changed by somebody else; it will be tried again", "pause", pause)
		}
		notBefore = time.Now().Add(max(rest, pause))
	}
}

// lookForDrift looks once, and repairs. It returns for how long nobody need look again.
func (b *Backend) lookForDrift(ctx context.Context) (rest time.Duration, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.started {
		return 0, nil // nothing is ours yet, or any more
	}
	var errs []error
	for _, f := range b.families {
		if !f.mayHaveDrifted(ctx) {
			continue
		}
		began := time.Now()
		repaired, err := f.repair(ctx)
		f.unrepaired = err != nil
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%v: %w", f.features.Family, err))
		case repaired:
			klog.FromContext(ctx).Info("Repaired rules that somebody else had changed", "family", f.features.Family)
		default:
			rest += restAfterReading * time.Since(began) // for nothing
		}
	}
	return rest, errors.Join(errs...)
}

func (f *family) mayHaveDrifted(ctx context.Context) bool {
	if !f.known {
		return f.unrepaired // otherwise a Sync has failed, and will be tried again by whoever called it
	}
	generation, err := f.dataplane.Generation(ctx)
	return err != nil || generation != f.generation || f.suspect
}

// repair compares with what is in force, and puts right what is different.
func (f *family) repair(ctx context.Context) (repaired bool, err error) {
	wasKnown := f.known
	if err := f.read(ctx); err != nil {
		return false, err
	}
	for _, c := range []*chains{f.nat, f.filter} {
		if wasKnown && f.unreadable[c.table] {
			// To write it anew each time that somebody changes something would be too much: the next resync does.
			c.untouchAll()
			delete(f.unreadable, c.table)
		}
	}
	if !f.isDifferent() {
		f.known = true
		return false, nil
	}
	return true, f.restore(ctx)
}
