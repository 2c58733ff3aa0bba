package kubeproxy

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Run keeps the sink in step with the feed until ctx ends, and then returns nil. It returns an error if the options are
// wrong, if the feed cannot go on, for example because the node does not get the podCIDRs that it needs (see
// LocalFeed.NodeCIDRTimeout), or if a Sync fails with a sink.PermanentError; any other failed Sync is tried again. When
// Run returns, everything that it started has ended. What has been applied stays. It logs to ctx's logger.
//
// Run may be called again, with a new sink: it sets everything again, but does not delete what only an earlier Run had
// set.
func Run(ctx context.Context, opts Options) (err error) {
	h := &feedHandler{feed: opts.Feed, wake: make(chan struct{}, 1)}
	if err := opts.Syncer.begin(h); err != nil {
		return err
	}
	defer func() { opts.Syncer.end(err) }()
	opts, err = opts.withDefaults()
	if err != nil {
		return fmt.Errorf("invalid options: %w", err)
	}
	opts.Health.SetFamilies(opts.Feed.Families())
	p := newProgress(opts.Feed.Families(), opts.Health)
	unregister, err := p.metrics.register(opts.Metrics)
	if err != nil {
		return err
	}
	defer unregister()
	log := klog.FromContext(ctx)
	h.progress = p
	l := &loop{opts: opts, log: log, handler: h, progress: p,
		failed: failures{log: log, onPortError: opts.OnPortError}}

	ctx, cancel := context.WithCancel(ctx)
	feedEnded := make(chan error, 1)
	go func() { feedEnded <- opts.Feed.Run(ctx, h) }()
	err = l.run(ctx, feedEnded)
	cancel()
	if !l.feedDone {
		<-feedEnded
	}
	return err
}

// feedHandler takes what the feed delivers, for the loop. It implements FeedHandler.
type feedHandler struct {
	feed        Feed
	progress    *progress
	wake        chan struct{}             // tells the loop to look for work
	pausedUntil atomic.Pointer[time.Time] // nothing is handed over before; nil before the first Sync

	mu     sync.Mutex // guards the feed's state, and what follows
	synced bool
	// hadPending: there was something to hand over already, so the loop needs no other signal.
	hadPending bool
}

// Lock implements FeedHandler.
func (h *feedHandler) Lock() {
	h.mu.Lock()
	h.hadPending = h.feed.Pending().Any()
}

// Unlock implements FeedHandler.
func (h *feedHandler) Unlock() {
	if pending := h.feed.Pending(); pending.Any() {
		h.progress.queued(pending)
		if !h.hadPending {
			h.signal()
		}
	}
	h.mu.Unlock()
}

// Changed implements FeedHandler.
func (h *feedHandler) Changed(object any) { h.progress.changed(object) }

// Synced implements FeedHandler.
func (h *feedHandler) Synced() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = true
	h.progress.health.SetPhase(health.Serving)
	h.signal()
}

// MinInterval lets Feeds hold back changes that would not be handed over yet.
func (h *feedHandler) MinInterval() time.Duration {
	if until := h.pausedUntil.Load(); until != nil {
		return max(0, time.Until(*until))
	}
	return 0
}

// ListIncomplete counts a streamed list that does not end.
func (h *feedHandler) ListIncomplete(kind metav1.Object) { h.progress.metrics.lists.Incomplete(kind) }

// WatchSilent counts a list that was made because the API server was silent.
func (h *feedHandler) WatchSilent(kind metav1.Object) { h.progress.metrics.lists.AfterSilence(kind) }

// Health implements FeedHandler.
func (h *feedHandler) Health() *health.Proxy { return h.progress.health }

func (h *feedHandler) signal() {
	select {
	case h.wake <- struct{}{}:
	default: // the loop will look anyway
	}
}

// pending reports whether the state is complete, and whether there is anything to hand over.
func (h *feedHandler) pending() (synced, pending bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.synced, h.synced && h.feed.Pending().Any()
}

// flush hands over what changed.
func (h *feedHandler) flush(to sink.Sink) localstate.Changes {
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := h.feed.Flush(to)
	h.progress.flushed(changed, h.feed.NoLocalEndpoints())
	return changed
}
