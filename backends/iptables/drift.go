package iptables

import (
	"context"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/backends/frontend"
)

// The kernel does not notify of changed rules, and reading all of them is expensive. Asking for the kernel's generation
// costs microseconds, so everything is read and compared only if that has changed. It also changes when others write
// rules of their own: after a reading that found nothing, the next look waits for a hundred times as long as that took,
// so that looking takes 1% of a processor at most.
const restAfterReading = 100

// restAfterRepair is how long not to read again after something was different, or could not be read.
const restAfterRepair = time.Second

// maxRepair is how long a repair may take. A program that hangs must not hold up Syncs, which wait for it, for ever.
const maxRepair = time.Minute

// look looks once whether another program has changed our rules, and repairs them. It is [frontend.RepairOptions.Look].
func (b *Backend) look(ctx context.Context, c *frontend.Changes) (frontend.Look, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxRepair, fmt.Errorf("the repair takes longer than %v", maxRepair))
	defer cancel()
	f := b.family(c.Family())
	began, before := time.Now(), f.state
	if before == unknown {
		return frontend.Look{}, nil // a Sync has failed, and will be tried again by whoever called it
	}
	if before == known {
		if generation, err := f.dataplane.Generation(ctx); err == nil && generation == f.generation {
			return frontend.Look{}, nil
		}
	}
	repaired, err := f.repair(ctx)
	switch {
	case err != nil:
		f.state = unrepaired
	case repaired:
		klog.FromContext(ctx).Info("Repaired rules that another program had changed", "family", c.Family())
	case before == known: // others are at work, and not at our rules
		return frontend.Look{Rest: restAfterReading * time.Since(began)}, nil
	}
	return frontend.Look{Repaired: repaired, Rest: restAfterRepair}, err
}

// repair reads the tables, and corrects what differs.
func (f *family) repair(ctx context.Context) (repaired bool, err error) {
	trusted := f.state.isTrusted()
	if err := f.read(ctx); err != nil {
		return false, err
	}
	for _, c := range f.tables() {
		if trusted && c.unreadable {
			// To write it anew each time that somebody changes something would be too much: the next resync does.
			c.untouchAll()
		}
	}
	b := f.changes()
	if b.IsEmpty() {
		f.state = known
		return false, nil
	}
	return true, f.restore(ctx, b, true)
}
