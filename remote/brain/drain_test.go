package brain

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A thousand clients are asked to leave within 20 seconds: 50 in each second, in virtual time.
func TestADrainedServerMakesNoHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := New(quiet(t), Options{Source: newCluster()})
		require.NoError(t, err)
		server.synced = true
		var wg sync.WaitGroup
		var mu sync.Mutex
		begin, told := time.Now(), map[time.Duration]int{}
		for i := range 1000 {
			ctx, err := endable(t.Context(), nil)
			require.NoError(t, err)
			s := &client{server: &server.common, node: fmt.Sprint("n", i), ctx: ctx}
			require.NoError(t, server.join(s, localstate.Options{}))
			wg.Go(func() {
				<-ctx.Done()
				mu.Lock()
				told[time.Since(begin)/time.Second]++
				mu.Unlock()
				server.leave(s)
			})
		}
		server.Drain(t.Context(), 20*time.Second)
		wg.Wait()
		assert.Equal(t, 20*time.Second-20*time.Millisecond, time.Since(begin))
		require.Len(t, told, 20)
		for second, n := range told {
			assert.Equal(t, 50, n, second)
		}
		require.ErrorIs(t, server.Ready(), errServerEnds)
		s := &client{server: &server.common, node: "n1", ctx: t.Context()}
		assert.Equal(t, codes.Unavailable, status.Code(server.join(s, localstate.Options{})))
	})
}

// Nodes that a draining server disconnects resume at another server: no sink is called, and changes during that time
// are not lost.
func TestNodesResumeElsewhereWhenAServerIsDrained(t *testing.T) {
	t.Parallel() // it waits until clients connect again
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	a := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	other := socket(t) // where nobody is yet
	recs := make([]*sink.Recorder, 10)
	for i := range recs {
		recs[i] = &sink.Recorder{}
		follow(t, recs[i], remote.Options{Targets: []string{a.target, other}, State: stateN1})
		awaitState(t, c, stateN1, recs[i])
	}
	a.awaitClients(t, upToDate(len(recs)))
	b := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, other)
	for _, rec := range recs {
		rec.TakeWaves()
	}
	a.Drain(t.Context(), 10*time.Millisecond)
	b.awaitClients(t, upToDate(len(recs)))
	assert.Equal(t, len(recs), b.sent("resumed"))
	for _, rec := range recs {
		assert.Empty(t, rec.TakeWaves())
	}
	a.stop()
	c.set(web("a", "10.0.0.2")...)
	for _, rec := range recs {
		awaitState(t, c, stateN1, rec)
	}
}

// upToDate: there are so many clients, and all have the newest.
func upToDate(n int) func([]ClientStatus) bool {
	return func(all []ClientStatus) bool {
		for _, c := range all {
			if !c.BehindSince.IsZero() {
				return false
			}
		}
		return len(all) == n
	}
}
