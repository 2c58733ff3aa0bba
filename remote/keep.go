package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/klog/v2"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// Keep makes a [Feed] keep its last state in a file, for a restart while no server can be reached: without it, such a
// node applies nothing until a server comes back, and after a reboot it has no rules.
//
// The file is written a minute after the first state, then at most once a minute while the state changes, and at the
// end of Run. Each time it is written as a whole, next to the old one, which it replaces only when it is on the disk.
// It is compressed, and has at most 64 MB. A failure to write it is logged, and has no other effect.
//
// A file is used only if it is complete, of this version or an older one, of the same cluster, node and options, and
// not too old; otherwise the log says what is wrong with it. Only the differences of the first state that a server
// sends are applied. Until then health.Proxy reports that the state is a kept one. The file records how new its state
// is: a server that has not seen all of it has to catch up, see Options.FreshnessWait.
type Keep struct {
	// File is the absolute path of the file. Its directory has to exist, and nobody else may write there: the state is
	// trusted as if it came from a server. Two processes for the same node may share it: the last writer wins.
	File string
	// Cluster returns texts that only this cluster has, for example the fingerprints of the authorities that verify its
	// servers. A file belongs to this cluster if the two have a text in common, so that authorities can be renewed: the
	// new one is added before the old one is removed. A file without texts belongs to a cluster without texts. Cluster is
	// called before the file is read, and before it is written, which happens within a minute after these texts change.
	// nil: there are none.
	Cluster func() ([]string, error)
	// MaxAge is the maximum age of a state that is used, counted from when a server last confirmed that it is the newest.
	// A time that is more than a minute in the future counts as too old. Default: 24 hours.
	MaxAge time.Duration
	// After is how long a Feed waits for a server's state before it uses that of the file. Default: 10 seconds.
	After time.Duration
}

// keepEvery is the shortest time between two writes.
const keepEvery = time.Minute

func (k *Keep) validate(o Options) error {
	var errs []error
	if !filepath.IsAbs(k.File) {
		errs = append(errs, fmt.Errorf("keep: the file %q is not an absolute path", k.File))
	}
	if k.MaxAge < 0 || k.After < 0 {
		errs = append(errs, errors.New("keep: durations must not be negative"))
	}
	if o.State.NodeName == "" {
		errs = append(errs, errors.New("keep: State.NodeName is needed"))
	}
	if o.Resume != nil {
		errs = append(errs, errors.New("keep: cannot be combined with Resume"))
	}
	return errors.Join(errs...)
}

// withDefaults returns the options with defaults for those that are not set.
func (k Keep) withDefaults() *Keep {
	if k.MaxAge == 0 {
		k.MaxAge = 24 * time.Hour
	}
	if k.After == 0 {
		k.After = 10 * time.Second
	}
	return &k
}

// recall records how new the kept state is, before that state is used: parts of it may still be applied, and a server
// that lags must not revert them.
func (c *Feed) recall() {
	b, err := c.opts.Keep.read()
	if err != nil {
		return // restore logs the error
	}
	if kept, _, err := c.opts.Keep.open(b, c.keeper(), time.Now()); err == nil {
		c.mu.Lock()
		c.seen = kept.Seen
		c.mu.Unlock()
	}
}

// restoreLater uses the state of the file if there is no state after Keep.After.
func (d *dialer) restoreLater(ctx context.Context) {
	c := d.client
	c.mu.Lock()
	restored := c.restored
	c.mu.Unlock()
	if restored.IsZero() { // otherwise Node has used it already
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.opts.Keep.After):
		}
	}
	d.restore(ctx)
}

// restore uses the state of the file, unless a server has sent one before.
func (d *dialer) restore(ctx context.Context) {
	c := d.client
	d.handler.Lock()
	has, done := c.view.node != nil, d.synced
	d.handler.Unlock()
	if done {
		return
	}
	var kept keptHeader
	var batch wire.Batch
	if !has { // decoded without the lock, because that takes time
		b, err := c.opts.Keep.read()
		if err == nil {
			kept, batch, err = c.opts.Keep.decode(b, c.keeper(), time.Now())
		}
		if err != nil {
			d.log.Info("Ignoring the saved state", "file", c.opts.Keep.File, "reason", err.Error())
			return
		}
	}
	if d.takeKept(ctx, kept, batch) {
		d.handler.Synced()
	}
}

// takeKept takes the state of a file if there is no state yet, and reports whether this made the state complete.
func (d *dialer) takeKept(ctx context.Context, kept keptHeader, batch wire.Batch) (first bool) {
	c := d.client
	d.handler.Lock()
	defer d.handler.Unlock()
	if d.synced {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.view.node == nil {
		if err := c.view.take(ctx, remotev1.Kind_RESET, batch); err != nil {
			d.log.Info("Ignoring the saved state", "file", c.opts.Keep.File, "reason", err.Error())
			return false
		}
		c.restored, c.seen, c.restoredOf = kept.At, kept.Seen, kept.Clusters
	}
	d.synced = true
	if !c.restored.IsZero() {
		d.log.Info("No server can be reached: using the saved state", "file", c.opts.Keep.File, "from", c.restored)
		d.handler.Health().SetRestored(c.restored)
	}
	return true
}

// keeper identifies the owner of the kept state.
func (c *Feed) keeper() *remotev1.Hello {
	return &remotev1.Hello{Node: c.opts.State.NodeName, Options: wire.EncodeOptions(c.opts.State)}
}

// confirm records that a server has confirmed that the state is the newest.
func (c *Feed) confirm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.confirmed = time.Now()
}

// keep keeps the state in the file until ctx ends.
func (c *Feed) keep(ctx context.Context, h kubeproxy.FeedHandler) {
	ticker := time.NewTicker(c.keepEvery)
	defer ticker.Stop()
	log := klog.FromContext(ctx)
	var kept *keptState
	problem := ""
	for {
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
		now, err := c.keepNow(h, kept)
		switch {
		case err == nil:
			kept, problem = now, ""
		case err.Error() != problem:
			problem = err.Error()
			log.Error(err, "Cannot save the state; trying again", "file", c.opts.Keep.File)
		}
		if ctx.Err() != nil {
			return
		}
	}
}

// keepNow writes the state if it differs from the kept one, or if that is old. It returns the kept state. A state from
// the file is written again, with its old time, only if the cluster's authorities have changed: otherwise the file
// would become useless if an authority is renewed while no server can be reached.
func (c *Feed) keepNow(h kubeproxy.FeedHandler, kept *keptState) (*keptState, error) {
	clusters, err := c.opts.Keep.clusters()
	if err != nil {
		return kept, err
	}
	h.Lock()
	c.mu.Lock()
	now := &keptState{at: c.confirmed, clusters: clusters, seen: c.seen, node: c.view.node,
		shared: c.view.shared.snapshot, own: maps.Clone(c.view.own)}
	restored := now.at.IsZero()
	if restored {
		now.at = c.restored
	}
	known := restored && slices.Equal(c.restoredOf, clusters)
	c.mu.Unlock()
	h.Unlock()
	switch {
	case now.at.IsZero() || known: // nothing from a server, and nothing new for the file
		return kept, nil
	case now.same(kept) && now.at.Sub(kept.at) < c.opts.Keep.MaxAge/8:
		return kept, nil
	}
	b, err := c.opts.Keep.encode(c.keeper(), now)
	if err == nil {
		err = c.opts.Keep.write(b)
	}
	if err != nil {
		return kept, err
	}
	return now, nil
}
