package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Run keeps the sink in step with the cluster until ctx ends, and then returns nil. It returns an error if the options are
// wrong, if the source cannot go on, or if a Sync fails with a sink.PermanentError; any other failed Sync is tried again.
// All that Run started has ended when it returns. What is in force stays in force.
//
// Run may be called again, with a new sink: it describes everything anew, but knows nothing of what an earlier Run described
// and is gone since.
func Run(ctx context.Context, opts Options) error {
	opts, err := opts.withDefaults()
	if err != nil {
		return fmt.Errorf("invalid options: %w", err)
	}
	state, err := localstate.New(ctx, opts.State)
	if err != nil {
		return fmt.Errorf("node-local state: %w", err)
	}
	r := &runner{
		opts:    opts,
		log:     klog.FromContext(ctx),
		state:   state,
		metrics: newMetrics(),
		health:  opts.Health,
		wake:    make(chan struct{}, 1),
	}
	if r.health == nil {
		r.health = &Health{}
	}
	for _, f := range opts.State.EnabledFamilies() {
		r.waves = append(r.waves, &familyWave{family: f})
	}
	unregister, err := r.metrics.register(opts.Metrics)
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	defer unregister()

	ctx, cancel := context.WithCancel(ctx)
	sourceEnded := make(chan error, 1)
	go func() { sourceEnded <- opts.Source.Run(ctx, opts.State.NodeName, r) }()

	r.failed.log = r.log
	r.failed.onPortError = opts.OnPortError
	err = r.loop(ctx, sourceEnded)
	cancel()
	if !r.sourceDone {
		<-sourceEnded
	}
	return err
}

// runner is one Run. It is the source's handler; its loop is the only one that talks to the sink.
type runner struct {
	opts    Options
	log     klog.Logger
	metrics *metrics
	health  *Health
	wake    chan struct{} // there is something to look at

	mu     sync.Mutex // guards what the source's goroutines share with the loop
	state  *localstate.State
	synced bool

	// what follows belongs to the loop
	sourceDone bool
	asked      bool      // for a full resync, through Options.Resync
	lastEnd    time.Time // of the last Sync; zero before the first
	lastFull   time.Time // end of the last Sync that was asked to be a full one
	failed     failures
	waves      []*familyWave
}

// familyWave is what of one family has been handed to the sink and is not known to be in force.
type familyWave struct {
	family    model.Family
	concerned bool
	triggers  []time.Time
}

// maxTriggers bounds what is remembered while Syncs fail.
const maxTriggers = 10000

// Update implements watch.Handler.
func (r *runner) Update(changes ...watch.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.state.Pending()
	for _, c := range changes {
		r.apply(c)
	}
	pending := r.state.Pending()
	if !pending.Any() {
		return
	}
	now := time.Now()
	for _, w := range r.waves {
		if pending.Concerns(w.family) {
			r.health.queued(w.family, now)
			r.metrics.lastQueued.WithLabelValues(w.family.String()).Set(seconds(now))
		}
	}
	r.metrics.setPending(pending)
	if !before.Any() {
		r.signal()
	}
}

// apply takes one change into the state.
func (r *runner) apply(c watch.Change) {
	changed, err := r.state.Apply(c.Object, c.Deleted)
	if err != nil {
		r.log.Info("Ignoring an object", "reason", err.Error())
	}
	if !changed {
		return
	}
	switch c.Object.(type) {
	case *corev1.Service:
		r.metrics.services.total.Inc()
	case *discoveryv1.EndpointSlice:
		r.metrics.endpoints.total.Inc()
	}
}

// Synced implements watch.Handler.
func (r *runner) Synced() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.synced = true
	r.signal()
}

func (r *runner) signal() {
	select {
	case r.wake <- struct{}{}:
	default: // the loop will look anyway
	}
}

// loop calls step whenever there is work, until ctx ends or nothing can be done any more.
func (r *runner) loop(ctx context.Context, sourceEnded <-chan error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		work, wait := r.next(time.Now())
		if work != nothing {
			if err := r.step(ctx, work); err != nil || ctx.Err() != nil {
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
		case <-r.wake:
		case <-timer.C:
		case _, ok := <-r.opts.Resync:
			if r.asked = true; !ok {
				r.opts.Resync = nil // closed: it has asked once
			}
		case err := <-sourceEnded:
			r.sourceDone, sourceEnded = true, nil
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return fmt.Errorf("source: %w", err)
			}
			if r.mu.Lock(); !r.synced {
				r.mu.Unlock()
				return errors.New("source: it ended before everything was listed")
			}
			r.mu.Unlock() // nothing will change any more, but what is applied has to be kept so
		}
	}
}

// work is what a step does. Each kind includes the ones before it.
type work int

const (
	nothing work = iota
	changes      // hand over what changed; Sync if that makes a difference
	always       // Sync in any case
	retry        // ask the sink to resync what failed
	resync       // ask the sink to resync everything
)

// next returns the work that is due or, if none is, how long it takes until some is: 0 if that is not known (S43).
func (r *runner) next(now time.Time) (due work, wait time.Duration) {
	r.mu.Lock()
	synced, pending := r.synced, r.state.Pending().Any()
	r.mu.Unlock()
	if !synced {
		return nothing, 0 // promise: never a partial view
	}
	earliest := r.lastEnd.Add(r.opts.MinInterval)
	consider := func(w work, at time.Time) {
		if at = later(earliest, at); !at.After(now) {
			due = max(due, w)
		} else if d := at.Sub(now); wait == 0 || d < wait {
			wait = d
		}
	}
	if r.lastEnd.IsZero() {
		consider(always, now)
	}
	if pending {
		consider(changes, now)
	}
	if r.asked {
		consider(resync, now)
	}
	if at := r.failed.retryAt(); !at.IsZero() {
		consider(retry, at)
	}
	if !r.lastFull.IsZero() && r.opts.ResyncInterval > 0 {
		consider(resync, r.lastFull.Add(r.opts.ResyncInterval))
	}
	return due, wait
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// step hands over what changed and calls Sync if that is needed: if anything changed, after a failure, for the first
// state, even of an empty cluster, and for a full resync, periodic or asked for (S44). It returns a permanent error only.
func (r *runner) step(ctx context.Context, work work) error {
	r.mu.Lock()
	changed := r.state.Flush(r.opts.Sink)
	r.metrics.setPending(localstate.Pending{})
	noLocal := r.state.NoLocalEndpoints()
	for _, w := range r.waves {
		w.concerned = w.concerned || changed.Concerns(w.family)
		w.triggers = append(w.triggers, changed.Triggers(w.family)...)
		w.triggers = w.triggers[:min(len(w.triggers), maxTriggers)]
		r.health.flushed(w.family)
		r.metrics.setNoLocal(w.family, noLocal)
	}
	r.mu.Unlock()

	if work == changes && !changed.Any() {
		r.settle()
		return nil
	}
	first := r.lastEnd.IsZero()
	r.askForResync(work)
	start := time.Now()
	err := r.opts.Sink.Sync(ctx)
	end := time.Now()
	r.lastEnd = end
	if err != nil && ctx.Err() != nil {
		return nil
	}
	r.account(first || work >= retry, start, end, err)
	if permanent := sink.Permanent(err); permanent != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if first || work == resync {
		r.asked, r.lastFull = false, end // if it failed, the retry is for what failed
	}
	r.failed.note(err, work >= retry, end, r.opts)
	if err == nil {
		r.log.V(2).Info("Synced", "services", changed.Services, "endpoints", changed.Endpoints,
			"full", first || work >= retry, "duration", end.Sub(start))
	}
	return nil
}

// askForResync tells the sink how much of its memory the next Sync is to distrust.
func (r *runner) askForResync(work work) {
	all, _ := r.opts.Sink.(sink.Resyncer)
	failed, _ := r.opts.Sink.(sink.FailureResyncer)
	switch {
	case work == retry && failed != nil:
		failed.ResyncFailed()
	case all != nil && (work == resync || work == retry && r.failed.families.pending()):
		all.ForceResync()
	}
}

// settle notes that what was flushed makes no difference, in the families in which everything else is applied.
func (r *runner) settle() {
	for _, w := range r.waves {
		if !w.concerned {
			r.health.settled(w.family, time.Time{})
		}
	}
}

// account puts the outcome of a Sync into health and metrics. A Sync that failed for one family has succeeded for the
// other, and one that failed for single service ports has succeeded.
func (r *runner) account(full bool, start, end time.Time, err error) {
	failed4, failed6 := sink.FailedFamilies(err)
	for _, w := range r.waves {
		if w.family == model.IPv4 && failed4 || w.family == model.IPv6 && failed6 {
			w.concerned = true
			continue
		}
		if !full && !w.concerned {
			r.health.settled(w.family, time.Time{})
			continue
		}
		r.health.settled(w.family, end)
		r.metrics.synced(w.family, full, start, end, w.triggers)
		w.concerned, w.triggers = false, nil
	}
}
