package nodeaddr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// Options configures a [Tracker]. Host is required.
type Options struct {
	// Choice selects the addresses that serve node ports.
	Choice Choice
	// Host is the source of the addresses; package hostaddr has this machine.
	Host Host
	// Changed, if set, is called after Addresses has changed, from the goroutine of Run or SetNode. It must not call
	// SetNode.
	Changed func(Addresses)
}

// Tracker tracks the addresses that serve node ports. Its methods may be called concurrently.
type Tracker struct {
	opts Options

	update sync.Mutex // held from reading the addresses until the result is published
	mu     sync.Mutex // guards the fields below
	host   []netip.Addr
	node   *model.Node
	addrs  Addresses
}

var _ sink.NodeSetter = (*Tracker)(nil)

// NewTracker reads the host's addresses and returns a Tracker with them. The Tracker follows changes only in
// [Tracker.Run].
func NewTracker(opts Options) (*Tracker, error) {
	if opts.Host == nil {
		return nil, errors.New("nodeaddr: Options.Host is required")
	}
	t := &Tracker{opts: opts}
	if err := t.read(); err != nil {
		return nil, err
	}
	return t, nil
}

// Addresses returns the current addresses.
func (t *Tracker) Addresses() Addresses {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addrs
}

// SetNode sets the node, which [Choice.Primary] needs. It implements [sink.NodeSetter]: call it in the backend's
// SetNode.
func (t *Tracker) SetNode(node *model.Node) {
	t.update.Lock()
	defer t.update.Unlock()
	t.mu.Lock()
	t.node = node
	t.mu.Unlock()
	t.publish()
}

const (
	firstPause = 100 * time.Millisecond
	lastPause  = 30 * time.Second
)

// Run follows the host's addresses until ctx ends; then it returns nil. Failures are logged and retried after a pause
// that grows from 100 ms to 30 s; until then the last addresses remain.
func (t *Tracker) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	pause := firstPause
	for {
		began := time.Now()
		err := t.watch(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx has ended
		}
		if time.Since(began) > lastPause {
			pause = firstPause
		}
		logger.Error(err, "Following the host's addresses was interrupted; trying again", "retryIn", pause)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// watch follows the host's addresses until that fails or they cannot be read. It returns the error of a failed read,
// because there may be no later change that would cause another read.
func (t *Tracker) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	err := t.opts.Host.Watch(ctx, func() {
		if err := t.read(); err != nil {
			cancel(err)
		}
	})
	if err == nil {
		err = context.Cause(ctx)
	}
	return err
}

// read reads the host's addresses.
func (t *Tracker) read() error {
	t.update.Lock()
	defer t.update.Unlock()
	list, err := t.opts.Host.Addresses()
	if err != nil {
		return fmt.Errorf("reading the host's addresses: %w", err)
	}
	var host []netip.Addr
	for _, a := range list {
		host = append(host, a.Addr)
	}
	t.mu.Lock()
	t.host = host
	t.mu.Unlock()
	t.publish()
	return nil
}

// publish recomputes the result and reports a change. t.update is held.
func (t *Tracker) publish() {
	t.mu.Lock()
	addrs := t.opts.Choice.Of(t.host, t.node)
	changed := !addrs.Equal(t.addrs)
	t.addrs = addrs
	t.mu.Unlock()
	if changed && t.opts.Changed != nil {
		t.opts.Changed(addrs)
	}
}
