package remote

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
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
// end of Run: as a whole, next to the old one, which it replaces only when it is on the disk. It is compressed, and has
// at most 64 MB. A file that cannot be written is logged, and costs nothing else.
//
// A file is used only if it is whole, of this version or an older one, of the same cluster, node and options, and not
// too old; otherwise the log says what is wrong with it. From the first state that a server sends, only what differs is
// applied. health.Proxy says meanwhile that the state is a kept one. The file says how new its state is: a server that has
// not seen all of it has to catch up, see Options.FreshnessWait.
type Keep struct {
	// File is the absolute path of the file. Its directory has to exist, and nobody else may write there: the state is
	// trusted as if it came from a server. Two processes for the same node may share it: the last writer wins.
	File string
	// Cluster is any text that only this cluster has, for example the fingerprint of the authority that verifies its
	// servers. A file from another cluster is not used.
	Cluster string
	// MaxAge is the maximum age of a state that is used, counted from when a server last said that it is the newest.
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

// withDefaults returns the options with those that are not set.
func (k Keep) withDefaults() *Keep {
	if k.MaxAge == 0 {
		k.MaxAge = 24 * time.Hour
	}
	if k.After == 0 {
		k.After = 10 * time.Second
	}
	return &k
}

// recall has the client remember how new the kept state is, before that is used: what has been applied of it may be in
// force still, and no server that lags is to undo it.
func (c *Feed) recall() {
	b, err := c.opts.Keep.read()
	if err != nil {
		return // restore logs it
	}
	if kept, _, err := c.opts.Keep.open(b, c.keeper(), time.Now()); err == nil {
		c.mu.Lock()
		c.seen = kept.Seen
		c.mu.Unlock()
	}
}

// restoreLater uses the state of the file if there is still none after the time that is allowed.
func (d *dialer) restoreLater(ctx context.Context) {
	c := d.client
	c.mu.Lock()
	restored := c.restored
	c.mu.Unlock()
	if restored.IsZero() { // else it has been used already, by Node
		select {
		case <-ctx.Done():
			return
		case <-time.After(c.opts.Keep.After):
		}
	}
	d.restore(ctx)
}

// restore uses the state of the file unless a server has been quicker.
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
	if !has { // it is decoded without the lock, because that takes time
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

// takeKept takes the state of a file if there is none, and reports whether the state is complete now, and has not been
// before.
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
		c.restored, c.seen = kept.At, kept.Seen
	}
	d.synced = true
	if !c.restored.IsZero() {
		d.log.Info("No server can be reached: using the saved state", "file", c.opts.Keep.File, "from", c.restored)
		d.handler.Health().SetRestored(c.restored)
	}
	return true
}

// keeper says whose state is kept.
func (c *Feed) keeper() *remotev1.Hello {
	return &remotev1.Hello{Node: c.opts.State.NodeName, Options: wire.EncodeOptions(c.opts.State)}
}

// confirm notes that a server says that the state is the newest.
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

// keepNow writes the state if it is not the kept one, or if that is old. It returns what is kept now.
func (c *Feed) keepNow(h kubeproxy.FeedHandler, kept *keptState) (*keptState, error) {
	h.Lock()
	c.mu.Lock()
	now := &keptState{at: c.confirmed, seen: c.seen, node: c.view.node, shared: c.view.shared.snapshot,
		own: maps.Clone(c.view.own)}
	c.mu.Unlock()
	h.Unlock()
	switch {
	case now.at.IsZero(): // no server has said anything
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
