package iptables

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// The kernel does not report changed rules, and reading all of them is expensive. Asking for the kernel's generation
// costs microseconds, so everything is read and compared only if that has changed. It also changes when others write
// their own rules: after a read that found no difference, the next check comes after a hundred times as long as the
// read took, so that checking takes 1% of a processor at most.
const pauseAfterReading = 100

// pauseAfterRepair is the pause after a read that found a difference, or failed.
const pauseAfterRepair = time.Second

// maxRepair is how long a repair may take. A program that hangs must not block Syncs, which wait for it, forever.
const maxRepair = time.Minute

// check checks once whether another program has changed our rules, and repairs them. See
// [frontend.Table.Repair].
func (f *family) check(ctx context.Context, c *frontend.Changes) (frontend.CheckResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxRepair, fmt.Errorf("the repair took longer than %v", maxRepair))
	defer cancel()
	began, before := time.Now(), f.state
	if before == unknown {
		return frontend.CheckResult{}, nil // a Sync has failed, and its caller will try again
	}
	if before == known {
		if generation, err := f.dataplane.Generation(ctx); err == nil && generation == f.generation {
			return frontend.CheckResult{}, nil
		}
	}
	repaired, err := f.repair(ctx)
	switch {
	case err != nil:
		f.state = unrepaired
	case repaired:
		klog.FromContext(ctx).Info("Repaired rules that another program had changed", "family", c.Family())
	case before == known: // others have changed rules, but not ours
		return frontend.CheckResult{Pause: pauseAfterReading * time.Since(began)}, nil
	}
	return frontend.CheckResult{Repaired: repaired, Pause: pauseAfterRepair}, err
}

// repair reads the tables, and corrects what differs.
func (f *family) repair(ctx context.Context) (repaired bool, err error) {
	trusted := f.state.isTrusted()
	if err := f.read(ctx); err != nil {
		return false, err
	}
	for _, c := range f.tables {
		if trusted && c.unreadable {
			// Rewriting it after each change by others would be too expensive: the next resync does that.
			c.untouchAll()
		}
	}
	b := f.changes()
	if b.IsEmpty() {
		f.state = known
		return false, nil
	}
	return true, f.unlessInUse(ctx, f.restore(ctx, b, true))
}
