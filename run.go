package kubeproxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/health"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// Run keeps the sink in step with the cluster until ctx ends, and then returns nil. It returns an error if the options
// are wrong, if the source cannot go on, if the node does not get the podCIDRs that it needs (see
// Options.NodeCIDRTimeout), or if a Sync fails with a sink.PermanentError; any other failed Sync is tried again. When
// Run returns, everything that it started has ended. What has been applied stays.
//
// Run may be called again, with a new sink: it sets everything again, but does not delete what only an earlier Run had
// set. It combines [New] and [Runner.Run].
func Run(ctx context.Context, opts Options) error {
	r, err := New(ctx, opts)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// Runner is like the function Run, but a program can query and trigger it. Its methods, except Run, may be called from
// any goroutine, before, during and after Run.
type Runner struct {
	opts   Options
	log    klog.Logger
	health *health.Proxy
	wake   chan struct{} // tells the loop to look for work

	asked atomic.Int32 // the work that RequestSync and RequestResync ask for: not under the lock, sinks may call them

	mu      sync.Mutex        // guards what the source's goroutines and callers share with the loop
	state   nodeState         // worked out here or, with a Feed, elsewhere
	cluster *localstate.State // the state if it is worked out here, otherwise nil
	synced  bool
	started bool

	loop loop
}

// New returns a Runner that is not running yet. It logs to ctx's logger.
func New(ctx context.Context, opts Options) (*Runner, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	if s, ok := opts.Source.(interface{ ServiceProxyName() string }); ok {
		if own := opts.State.ServiceProxyName; own != "" && own != s.ServiceProxyName() {
			return nil, fmt.Errorf("invalid options: State.ServiceProxyName is %q, that of the source %q",
				own, s.ServiceProxyName())
		}
		opts.State.ServiceProxyName = s.ServiceProxyName()
	}
	r := &Runner{opts: opts, log: klog.FromContext(ctx), health: opts.Health, wake: make(chan struct{}, 1)}
	if opts.Feed != nil {
		r.state = feedState{opts.Feed}
		return r, nil
	}
	state, err := localstate.New(ctx, opts.State)
	if err != nil {
		return nil, fmt.Errorf("node-local state: %w", err)
	}
	r.state, r.cluster = state, state
	return r, nil
}

// Run is like the function Run. It can be called once.
func (r *Runner) Run(ctx context.Context) error {
	r.mu.Lock()
	again := r.started
	r.started = true
	r.mu.Unlock()
	if again {
		return errors.New("the Runner has been used: make a new one")
	}
	progress, err := newProgress(r.opts.State.EnabledFamilies(), r.health, r.opts.Metrics)
	if err != nil {
		return err
	}
	defer progress.close()
	r.loop = loop{Runner: r, progress: progress, failed: failures{log: r.log, onPortError: r.opts.OnPortError}}

	ctx, cancel := context.WithCancel(ctx)
	sourceEnded := make(chan error, 1)
	go func() {
		h := &handler{r, progress}
		if r.opts.Feed != nil {
			sourceEnded <- r.opts.Feed.Run(ctx, feedHandler{h})
		} else {
			sourceEnded <- r.opts.Source.Run(ctx, r.opts.State.NodeName, h)
		}
	}()

	err = r.loop.run(ctx, sourceEnded)
	cancel()
	if !r.loop.sourceDone {
		<-sourceEnded
	}
	return err
}

// Explain returns what is known about a service, and why each endpoint is or is not used on this node, according to the
// latest objects. It returns false if neither the Service nor a slice of it is known, and always with a Feed. The
// sink's Set and Delete methods must not call it, because they are called while the state is locked.
func (r *Runner) Explain(name model.ServiceName) (*localstate.Explanation, bool) {
	if r.cluster == nil {
		return nil, false
	}
	r.mu.Lock()
	explain, known := r.cluster.ExplainLater(name)
	r.mu.Unlock()
	if !known {
		return nil, false
	}
	return explain(), true
}

// RequestSync asks for a Sync, not a resync, even if nothing has changed in the cluster. It is for sinks that depend on
// something else as well, such as a filter whose policy changed. It does not wait; the Sync comes as soon as
// MinInterval allows. Requests before that are combined.
func (r *Runner) RequestSync() { r.request(always) }

// RequestResync asks for a full resync, like those every Options.ResyncInterval, for example because an operator wants
// one. It does not wait for it.
func (r *Runner) RequestResync() { r.request(resync) }

func (r *Runner) request(w work) {
	for {
		before := r.asked.Load()
		if work(before) >= w || r.asked.CompareAndSwap(before, int32(w)) {
			break
		}
	}
	r.signal()
}

func (r *Runner) signal() {
	select {
	case r.wake <- struct{}{}:
	default: // the loop will look anyway
	}
}

// handler applies what the source delivers to the state. It implements watch.Handler.
type handler struct {
	*Runner
	progress *progress
}

func (h *handler) Update(changes ...watch.Change) {
	h.update(func() {
		for _, c := range changes {
			changed, err := h.cluster.Apply(c.Object, c.Deleted)
			if err != nil {
				h.log.Info("Ignoring an object", "reason", err.Error())
			}
			if changed {
				h.progress.changed(c.Object)
			}
		}
	})
}

// update calls change, and records what the loop has to hand over after it.
func (h *handler) update(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	looks := h.state.Pending().Any() && !h.state.AwaitsNodeCIDR() // the loop will look without a signal
	change()
	if pending := h.state.Pending(); pending.Any() {
		h.progress.queued(pending)
		if !looks {
			h.signal()
		}
	}
}

func (h *handler) Synced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = true
	h.signal()
}
