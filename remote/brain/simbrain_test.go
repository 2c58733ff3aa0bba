package brain

import (
	"context"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/test/bufconn"
)

// simBrain is one of the brains. It may be restarted.
type simBrain struct {
	sim      *simulation
	index    int
	lag      time.Duration
	server   atomic.Pointer[Server]
	listener atomic.Pointer[bufconn.Listener]
	mute     atomic.Bool // it is gone, but nodes do not hear that
	cancel   func()
	running  sync.WaitGroup

	sent, received  atomic.Int64
	attempts, fulls perSecond
}

// simPerMessage is the processor time that a message costs a brain, by its count.
const simPerMessage = 80 * time.Microsecond

// start returns when the brain serves.
func (b *simBrain) start() {
	ctx, cancel := context.WithCancel(quiet(b.sim.t))
	server, err := New(ctx, Options{Source: laggingSource{b.sim.cluster, b.lag}})
	require.NoError(b.sim.t, err)
	server.pace.cpu = func() (time.Duration, bool) {
		return time.Duration(server.pace.messages.total().sent) * simPerMessage, true
	}
	ln := bufconn.Listen(64 << 10)
	b.cancel = cancel
	b.running.Go(func() { assert.NoError(b.sim.t, server.Run(ctx)) })
	b.running.Go(func() {
		assert.NoError(b.sim.t, server.Serve(ctx, ln, ServeOptions{Insecure: true, Node: ClaimedNode}))
	})
	for server.Ready() != nil {
		time.Sleep(time.Millisecond)
	}
	b.mute.Store(false)
	b.listener.Store(ln)
	b.server.Store(server)
}

// stop ends the brain, at once.
func (b *simBrain) stop() {
	b.server.Store(nil)
	b.listener.Store(nil)
	b.cancel()
	b.running.Wait()
	synctest.Wait()
}

// vanish ends the brain, and its nodes hear nothing of that.
func (b *simBrain) vanish() {
	b.mute.Store(true)
	b.stop()
}

func (b *simBrain) attempt() {
	b.attempts.count()
	b.sim.attempts.count()
}

func (b *simBrain) full() { b.fulls.count() }
