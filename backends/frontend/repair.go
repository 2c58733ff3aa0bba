package frontend

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/sink"
)

// The pause after an error or a repair.
const (
	minPause = 100 * time.Millisecond
	maxPause = 30 * time.Second
)

// CheckResult is the result of one check of the dataplane.
type CheckResult struct {
	// Repaired: something had been changed, and was repaired.
	Repaired bool
	// Expected: no other program made the difference. It follows from something that the backend watches, such as the
	// host's addresses.
	Expected bool
	// Pause is the minimum pause before the next check, if checks are expensive.
	Pause time.Duration
}

// Repair checks the dataplane, and repairs it, until ctx ends: when wake, if it is not nil, has a value because the
// dataplane has reported a change, and at intervals of every, if that is positive. Families are repaired independently:
// one that cannot be repaired does not delay the other. It does not check before the first Sync and after CleanUp.
//
// check finds what other programs have changed of the backend's objects in one family, and repairs it. c has the
// state as of the last Sync, in [Changes.All], and those of its changes that have not been accepted; [Changes.Accept]
// says that the repair has applied these as well. An error is logged, and check is called again after a pause.
//
// There is a pause after a repair, too, because another program may make the same change again and again. It begins
// with 100 ms, or CheckResult.Pause if that is longer, and doubles each time, up to 30 s, until nothing has
// been changed for ten times as long.
func (t *Table) Repair(ctx context.Context, every time.Duration, wake <-chan struct{},
	check func(ctx context.Context, c *Changes) (CheckResult, error)) {
	loops := make([]repairLoop, len(t.families))
	for i, f := range t.families {
		loops[i] = repairLoop{family: f, pause: minPause}
	}
	var tick <-chan time.Time
	if every > 0 {
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		tick = ticker.C
	}
	later := time.NewTimer(0)
	defer later.Stop()
	for {
		woken := true
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-tick:
		case <-later.C:
			woken = false
		}
		if ctx.Err() != nil { // select takes any of the cases that are ready
			return
		}
		var next time.Time
		for i := range loops {
			l := &loops[i]
			l.due = l.due || woken
			if l.due && !time.Now().Before(l.notBefore) {
				t.check(ctx, l, check)
			}
			if l.due && (next.IsZero() || l.notBefore.Before(next)) {
				next = l.notBefore
			}
		}
		if ctx.Err() != nil {
			return
		}
		if !next.IsZero() {
			later.Reset(time.Until(next))
		}
	}
}

// repairLoop has the times of the checks of one family.
type repairLoop struct {
	family    *family
	due       bool
	notBefore time.Time
	busy      time.Time // when there last was something to repair
	pause     time.Duration
}

// check runs check once for a family.
func (t *Table) check(ctx context.Context, l *repairLoop, check func(context.Context, *Changes) (CheckResult, error)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l.due = false
	if !t.active {
		return
	}
	now := time.Now()
	if now.Sub(l.busy) > 10*l.pause {
		l.pause = minPause
	}
	l.family.begin()
	found, err := check(ctx, &Changes{t, l.family, l.family.full})
	now = time.Now()
	if err == nil && !found.Repaired {
		l.notBefore = now.Add(found.Pause)
		return
	}
	wait := max(l.pause, found.Pause)
	l.notBefore, l.busy, l.pause = now.Add(wait), now, min(2*wait, maxPause)
	if found.Repaired && !found.Expected {
		t.repaired(l.family)
	}
	if ctx.Err() != nil {
		return
	}
	t.repairs.add(sink.Repair{At: now, Family: l.family.family, Err: err})
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not repair changes by another program", "family", l.family.family,
			"retryIn", wait)
		l.due = true
	}
}

// Repaired says, from Apply, that it has put back what others had removed.
func (c *Changes) Repaired() { c.table.repaired(c.family) }

func (t *Table) repaired(f *family) {
	if t.options.OnRepair != nil {
		t.options.OnRepair(f.family)
	}
}

// maxRepairs is how many repairs are remembered.
const maxRepairs = 20

// repairs are the last ones. They have a lock of their own, so that callers do not wait for a Sync.
type repairs struct {
	mu    sync.Mutex
	last  []sink.Repair // the latest first
	total int
}

func (r *repairs) add(one sink.Repair) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if one.Err == nil {
		r.total++
	}
	r.last = append([]sink.Repair{one}, r.last[:min(len(r.last), maxRepairs-1)]...)
}

// Repairs implements [sink.Repairer], for all that [Table.Repair] has done.
func (t *Table) Repairs() (last []sink.Repair, total int) {
	t.repairs.mu.Lock()
	defer t.repairs.mu.Unlock()
	return t.repairs.last, t.repairs.total // add makes a new list
}
