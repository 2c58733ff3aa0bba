package nft_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/brain"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

// TestConformanceBehindABrain: the suite describes a state, from which this makes the cluster that it could be the
// state of. A server of package remote works out from the cluster what the node is told, and a client feeds it to the
// backend.
func TestConformanceBehindABrain(t *testing.T) {
	t.Parallel()
	f := factory()
	start := f.New
	f.New = func(ctx context.Context, env conformance.Env) (sink.Sink, error) {
		backend, err := start(ctx, env)
		if err != nil {
			return nil, err
		}
		return newBehindBrain(ctx, env, backend)
	}
	conformance.Test(t, f)
}

// behindBrain is a backend that gets everything from a brain. It turns the calls that it receives into objects of the
// brain's cluster.
type behindBrain struct {
	*sink.Recorder // what it is told
	ctx            context.Context
	dir            string
	cluster        *cluster
	gate           *gate
	server         func() // ends it
	node           localstate.Options
	requests       chan struct{}
	client         func() // ends it; nil before the first Sync
	resync         bool
}

func newBehindBrain(ctx context.Context, env conformance.Env, backend sink.Sink) (*behindBrain, error) {
	dir, err := os.MkdirTemp("", "kpl")
	if err != nil {
		return nil, err
	}
	b := &behindBrain{Recorder: &sink.Recorder{}, ctx: ctx, dir: dir, cluster: &cluster{changes: make(chan change)},
		requests: make(chan struct{}, 1)}
	b.gate = newGate(env, backend, b.Recorder)
	server, err := brain.New(ctx, brain.Options{Source: b.cluster})
	if err != nil {
		return nil, err
	}
	listener, err := brain.Listen(ctx, b.target(), 0)
	if err != nil {
		return nil, err
	}
	b.server = background(ctx, server.Run, func(ctx context.Context) error {
		return server.Serve(ctx, listener, brain.ServeOptions{})
	})
	return b, nil
}

func (b *behindBrain) target() string { return "unix://" + filepath.Join(b.dir, "brain.sock") }

// background runs functions until ctx ends, or end is called.
func background(ctx context.Context, run ...func(context.Context) error) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for _, f := range run {
		wg.Go(func() { _ = f(ctx) }) // if it fails nothing comes any more, and Sync says so
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// ForceResync implements sink.Resyncer.
func (b *behindBrain) ForceResync() { b.resync = true }

// ResyncFailed implements sink.FailureResyncer.
func (b *behindBrain) ResyncFailed() { b.resync = true }

// maxWay is how long a change may take to get through. It fails a test that hangs, and measures nothing.
const maxWay = 2 * time.Minute

// Sync implements sink.Sink: it returns the result of the backend's first Sync in the requested state.
func (b *behindBrain) Sync(ctx context.Context) error {
	before := b.gate.begun()
	if err := b.cluster.become(ctx, b.Recorder); err != nil {
		return err
	}
	if err := b.connect(); err != nil {
		return err
	}
	b.gate.resync.Store(b.resync)
	select {
	case b.requests <- struct{}{}:
	default: // there is one already
	}
	timeout := time.NewTimer(maxWay)
	defer timeout.Stop()
	for {
		ended, difference, err := b.gate.last()
		if ended > before && difference == "" {
			b.resync = b.resync && err != nil
			return err
		}
		select {
		case <-b.gate.news:
		case <-ctx.Done():
			return ctx.Err()
		case <-timeout.C:
			return fmt.Errorf("what the backend is told is not what the brain was told:\n%s", difference)
		}
	}
}

// connect starts the client, anew if what it says of the node has changed.
func (b *behindBrain) connect() error {
	node := nodeOptions(b.Recorder)
	if b.client != nil && reflect.DeepEqual(node, b.node) {
		return nil
	}
	if b.client != nil {
		b.client()
		b.gate.forget(b.Recorder) // a new run knows nothing of what the one before described
	}
	feed, err := remote.NewFeed(remote.Options{Targets: []string{b.target()}, State: node})
	if err != nil {
		return err
	}
	b.node = node
	b.client = background(b.ctx, func(ctx context.Context) error {
		return kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: b.gate, SyncRequests: b.requests,
			MinInterval: time.Millisecond})
	})
	return nil
}

// Close ends the client and the server, and closes the backend.
func (b *behindBrain) Close() error {
	if b.client != nil {
		b.client()
	}
	b.server()
	return errors.Join(b.gate.backend.(io.Closer).Close(), os.RemoveAll(b.dir))
}

// gate is what the client feeds: the backend, on a thread that is in the node's network namespace.
type gate struct {
	*sink.TeeSink
	env     conformance.Env
	backend sink.Sink
	told    *sink.Recorder // what the brain's cluster is made of
	got     *sink.Recorder // what came of it
	news    chan struct{}  // a Sync has ended
	resync  atomic.Bool    // the next Sync is to be a resync

	mu         sync.Mutex // guards what follows
	started    int        // Syncs
	ended      int        // the last one that has ended ...
	difference string     // ... in how far its state was not what was told ...
	err        error      // ... and its error
}

func newGate(env conformance.Env, backend sink.Sink, told *sink.Recorder) *gate {
	got := &sink.Recorder{}
	return &gate{TeeSink: sink.Tee(got, backend), env: env, backend: backend, told: told, got: got,
		news: make(chan struct{}, 1)}
}

// Sync implements sink.Sink.
func (g *gate) Sync(ctx context.Context) error {
	g.mu.Lock()
	g.started++
	n := g.started
	g.mu.Unlock()
	difference := differenceOf(g.told, g.got)
	if g.resync.Swap(false) {
		g.ForceResync()
	}
	err := g.env.Do(func() error { return g.TeeSink.Sync(ctx) })
	g.mu.Lock()
	g.ended, g.difference, g.err = n, difference, err
	g.mu.Unlock()
	select {
	case g.news <- struct{}{}:
	default: // it will be looked at anyway
	}
	return err
}

func (g *gate) begun() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.started
}

func (g *gate) last() (ended int, difference string, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ended, g.difference, g.err
}

// forget takes from the backend what is not in a state. What came of the last Sync does not count any more: it may have
// been cut short.
func (g *gate) forget(keep *sink.Recorder) {
	g.mu.Lock()
	g.difference = "the client has been started anew"
	g.mu.Unlock()
	endpoints, services := keep.Endpoints(), keep.Services()
	for key := range g.got.Endpoints() {
		if endpoints[key] == nil {
			g.DeleteEndpoint(key)
		}
	}
	for name := range g.got.Services() {
		if services[name] == nil {
			g.DeleteService(name)
		}
	}
}
