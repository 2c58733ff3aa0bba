package kubeproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/internal/watchhealth"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// LocalFeed is the [Feed] that works out the node-local state itself, from the objects of a source. Set its fields
// before the first run, and do not change them afterwards.
type LocalFeed struct {
	// Source is where cluster objects come from. It is required.
	Source watch.Source
	// State configures the node-local state: the name of this node, IP families, local-traffic detection ...
	State localstate.Options
	// Cluster has the options that are the same for all nodes. ServiceProxyName is taken from the source if the source has
	// one; a different one here is an error.
	Cluster localstate.ClusterOptions
	// NodeCIDRTimeout is how long to wait for the node's podCIDRs where State.DetectLocal.NodeCIDR needs them: nothing
	// is applied before they are known (S48), Health shows that phase, and Run fails when the time is up. Default 5
	// min; negative: forever.
	NodeCIDRTimeout time.Duration
	// OnEvent, if given, is called with each change that the source delivers, whether or not it makes a difference here,
	// for example to count events. It must not change or keep the object, has to return soon, and must not call the feed.
	// Calls are not concurrent.
	OnEvent func(watch.Change)

	running atomic.Bool

	mu    sync.Mutex        // guards the state against Explain; taken after the lock of the run
	state *localstate.State // nil before the first run
}

// Run implements Feed.
func (f *LocalFeed) Run(ctx context.Context, h FeedHandler) error {
	if !f.running.CompareAndSwap(false, true) {
		return errors.New("the feed is already running")
	}
	defer f.running.Store(false)
	state, err := f.newState(ctx)
	if err != nil {
		return err
	}
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in := &intake{feed: f, handler: h, log: klog.FromContext(ctx), began: time.Now()}
	f.mu.Lock()
	f.state = state
	in.watchdog = time.AfterFunc(maxSilence, func() { in.checkSource(running) })
	f.mu.Unlock()
	defer in.watchdog.Stop()
	in.timer = time.AfterFunc(math.MaxInt64, func() {
		if in.waits() {
			cancel(fmt.Errorf("node %q has no podCIDRs after %v: local traffic cannot be detected", f.State.NodeName,
				f.timeout()))
		}
	})
	defer in.timer.Stop()
	err = f.Source.Run(running, f.State.NodeName, in)
	if err == nil && in.waits() {
		<-running.Done()
	}
	switch {
	case ctx.Err() != nil:
		return nil
	case running.Err() != nil:
		return context.Cause(running)
	case err != nil:
		return fmt.Errorf("source: %w", err)
	}
	return nil
}

// newState returns the state of a run.
func (f *LocalFeed) newState(ctx context.Context) (*localstate.State, error) {
	if f.Source == nil {
		return nil, errors.New("invalid options: no source")
	}
	cluster, err := f.Cluster.OfSource(f.Source)
	if err != nil {
		return nil, fmt.Errorf("invalid options: %w", err)
	}
	if f.State.DetectLocal.NodeCIDR && !f.deliversNodes() {
		return nil, errors.New("invalid options: detect local: NodeCIDR needs the Node, and the source delivers no Nodes")
	}
	state, err := localstate.New(ctx, f.State, cluster)
	if err != nil {
		return nil, fmt.Errorf("node-local state: %w", err)
	}
	return state, nil
}

// deliversNodes reports whether the source delivers Nodes: it does unless its method DeliversNodes returns false.
func (f *LocalFeed) deliversNodes() bool {
	s, ok := f.Source.(interface{ DeliversNodes() bool })
	return !ok || s.DeliversNodes()
}

func (f *LocalFeed) timeout() time.Duration { return cmp.Or(f.NodeCIDRTimeout, 5*time.Minute) }

// Families implements Feed.
func (f *LocalFeed) Families() []model.Family { return f.State.EnabledFamilies() }

// Pending implements Feed.
func (f *LocalFeed) Pending() localstate.Pending { return f.state.Pending() }

// Flush implements Feed.
func (f *LocalFeed) Flush(r localstate.Receiver) localstate.Changes {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state.Flush(r)
}

// NoLocalEndpoints implements Feed.
func (f *LocalFeed) NoLocalEndpoints() localstate.NoLocalEndpoints { return f.state.NoLocalEndpoints() }

// Applied implements Feed.
func (f *LocalFeed) Applied(error) {}

// Explain returns what is known about a service, and why each endpoint is or is not used on this node, according to the
// latest objects. It returns false if neither the Service nor a slice of it is known, and before the first run. It may
// be called from any goroutine, even after the run, except from the sink's Set and Delete methods, which are called
// while the state is locked.
func (f *LocalFeed) Explain(name model.ServiceName) (*localstate.Explanation, bool) {
	var explain func() *localstate.Explanation
	known := false
	f.mu.Lock()
	if f.state != nil {
		explain, known = f.state.ExplainLater(name)
	}
	f.mu.Unlock()
	if !known {
		return nil, false
	}
	return explain(), true
}

// maxSilence is how long nothing may be heard of a kind of object before that is logged, if the server sends bookmarks.
// It sends one a minute on each watch, and a little later if it is busy.
const maxSilence = 90 * time.Second

var _ interface{ Heard(metav1.Object, string) } = (*intake)(nil)

// intake takes what the source of a LocalFeed delivers. It implements watch.Handler.
type intake struct {
	feed     *LocalFeed
	handler  FeedHandler
	log      klog.Logger
	timer    *time.Timer // ends the run if the node's podCIDRs do not arrive
	watchdog *time.Timer // checks that the source is not silent
	began    time.Time
	heard    watchhealth.Tracker

	// Under the feed's mu.
	listed, complete bool
	hasNode          bool
	silent           bool // nothing was heard of a kind of object, or of any, and that has been logged
}

// Heard is called by sources that report every sign of life of their server: see [watch.Handler].
func (i *intake) Heard(kind metav1.Object, resourceVersion string) {
	now := time.Now()
	_, before, quietBefore := i.heard.Oldest()
	first := before.IsZero()
	if first {
		before = i.began
	}
	i.heard.Heard(kind, resourceVersion, now)
	_, oldest, quiet := i.heard.Oldest()
	if now.Sub(before) < maxSilence+quietBefore || !oldest.IsZero() && now.Sub(oldest) >= maxSilence+quiet {
		return
	}
	i.feed.mu.Lock()
	defer i.feed.mu.Unlock()
	if !i.silent {
		return
	}
	i.endSilence()
	if !first {
		i.log.Info("The API server answers again", "after", now.Sub(before))
	}
}

// Bookmarks is called by sources whose server sends bookmarks: see [watch.Handler].
func (i *intake) Bookmarks(kind metav1.Object) { i.heard.Bookmarks(kind) }

// ListIncomplete is called by sources if a streamed list does not end: see [watch.Handler].
func (i *intake) ListIncomplete(kind metav1.Object) {
	if h, ok := i.handler.(interface{ ListIncomplete(metav1.Object) }); ok {
		h.ListIncomplete(kind)
	}
}

// WatchSilent is called by sources that list a kind anew because the server was silent: see [watch.Handler].
func (i *intake) WatchSilent(kind metav1.Object) {
	if h, ok := i.handler.(interface{ WatchSilent(metav1.Object) }); ok {
		h.WatchSilent(kind)
	}
}

// endSilence records that the source is not silent. The caller holds the feed's mu.
func (i *intake) endSilence() {
	i.silent = false
	i.handler.Health().SetDisconnected(time.Time{})
}

// checkSource logs if the source is silent, or has not listed everything yet.
func (i *intake) checkSource(ctx context.Context) {
	i.feed.mu.Lock()
	defer i.feed.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	next := maxSilence
	switch kind, heard, quiet := i.heard.Oldest(); {
	case heard.IsZero(): // the source does not report it
	case time.Since(heard) < maxSilence+quiet:
		next = min(next, maxSilence+quiet-time.Since(heard))
	case !i.silent:
		i.silent = true
		i.handler.Health().SetDisconnected(heard)
		i.log.Error(nil, "The API server is silent; applied rules stay in place, and changes are missed",
			"kind", kind, "since", heard)
	}
	if !i.listed && time.Since(i.began) >= maxSilence {
		if _, heard, _ := i.heard.Oldest(); heard.IsZero() {
			i.silent = true
			i.handler.Health().SetDisconnected(i.began)
		}
		i.log.Error(nil, "Nothing is applied yet, because not everything has been listed: is the API server reachable?",
			"since", i.began)
	}
	i.watchdog.Reset(next)
}

// Update implements watch.Handler.
func (i *intake) Update(changes ...watch.Change) {
	i.handler.Lock()
	completed := i.apply(changes)
	i.handler.Unlock()
	if completed {
		i.handler.Synced()
	}
}

// apply applies changes to the state, and reports whether they completed it.
func (i *intake) apply(changes []watch.Change) (completed bool) {
	i.feed.mu.Lock()
	defer i.feed.mu.Unlock()
	for _, c := range changes {
		if _, ok := c.Object.(*corev1.Node); ok {
			i.hasNode = !c.Deleted
			i.handler.Health().SetNodeMissing(i.listed && c.Deleted)
		}
		changed, err := i.feed.state.Apply(c.Object, c.Deleted)
		if err != nil {
			i.log.Info("Ignoring an object", "reason", err.Error())
		} else if i.feed.OnEvent != nil {
			i.feed.OnEvent(c)
		}
		if changed {
			i.handler.Changed(c.Object)
		}
	}
	return i.completes()
}

// completes reports whether the state is complete now and was not before. The caller holds the feed's mu.
func (i *intake) completes() bool {
	if !i.listed || i.complete || i.feed.state.AwaitsNodeCIDR() {
		return false
	}
	i.complete = true
	return true
}

// Synced implements watch.Handler. Without the node's podCIDRs, if they are needed to detect local traffic, the state
// is not complete yet.
func (i *intake) Synced() {
	i.feed.mu.Lock()
	i.listed = true
	if _, heard, _ := i.heard.Oldest(); i.silent && heard.IsZero() {
		i.endSilence()
	}
	if !i.hasNode && i.feed.State.NodeName != "" && i.feed.deliversNodes() {
		i.handler.Health().SetNodeMissing(true)
		i.log.Error(nil, "There is no Node of this name: its addresses, zone and podCIDRs are not known. Check the name",
			"node", i.feed.State.NodeName)
	}
	completed := i.completes()
	if !completed {
		i.handler.Health().SetPhase(health.AwaitingNodeCIDR)
		i.log.Info("The Node has no podCIDRs, which are needed to detect local traffic: waiting for them before "+
			"anything is applied", "node", i.feed.State.NodeName, "timeout", i.feed.timeout())
		if timeout := i.feed.timeout(); timeout > 0 {
			i.timer.Reset(timeout)
		}
	}
	i.feed.mu.Unlock()
	if completed {
		i.handler.Synced()
	}
}

// waits reports whether only the node's podCIDRs are missing.
func (i *intake) waits() bool {
	i.feed.mu.Lock()
	defer i.feed.mu.Unlock()
	return i.listed && !i.complete
}
