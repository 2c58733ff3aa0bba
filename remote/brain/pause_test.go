package brain

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// heldStream keeps the states that a client is sent, and when they came.
type heldStream struct {
	stream
	mu    sync.Mutex
	syncs []*remotev1.Sync
	at    []time.Time
}

func (s *heldStream) SendMsg(m any) error {
	u := &remotev1.Update{}
	if f, ok := m.(*wire.Frame); ok {
		var err error
		if u, err = new(wire.Decoder).Update(f.Bytes(), gunzip, &wire.Batch{}); err != nil {
			return err
		}
	}
	if u.Sync != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.syncs, s.at = append(s.syncs, u.Sync), append(s.at, time.Now())
	}
	return nil
}

// sent returns the states that the client was sent, and when.
func (s *heldStream) sent() ([]*remotev1.Sync, []time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.syncs), slices.Clone(s.at)
}

// While a client pauses, changes wait, and are sent in one batch when the pause ends, so that the batch is as new as
// possible. Until then the client counts as behind.
func TestNewsWaitsWhileTheClientPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := New(quiet(t), Options{Source: newCluster()})
		require.NoError(t, err)
		h := serverHandler{server}
		set := func(address string) {
			for _, o := range web("a", address) {
				h.Update(watch.Change{Object: o})
			}
			server.publish(t.Context())
		}
		h.Update(watch.Change{Object: baseObjects()[0]})
		h.Synced()
		stream := &heldStream{}
		c := &client{server: &server.common, node: "n1", stream: stream, ctx: t.Context(), news: true,
			until: time.Now().Add(time.Hour)}
		require.NoError(t, server.join(c, localstate.Options{}))
		defer server.leave(c)
		c.start()
		defer c.stop()
		synctest.Wait()
		begin := time.Now()
		wasSent := func(states int, why ...any) {
			t.Helper()
			syncs, _ := stream.sent()
			require.Len(t, syncs, states, why...)
		}
		acknowledge := func(pause time.Duration) {
			syncs, _ := stream.sent()
			news, err := c.take(&remotev1.Request{Ack: &remotev1.Ack{
				Revision: syncs[len(syncs)-1].Revision, PauseMillis: uint32(pause.Milliseconds())}})
			require.NoError(t, err)
			if news && c.begin() {
				c.send()
			}
		}
		acknowledge(time.Second)
		for _, address := range []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"} {
			time.Sleep(300 * time.Millisecond)
			set(address)
			synctest.Wait()
			wasSent(1)
			assert.False(t, server.Clients()[0].BehindSince.IsZero())
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		wasSent(2)
		_, at := stream.sent()
		assert.Equal(t, time.Second, at[1].Sub(begin))
		held := func() int64 { return server.pace.messages.total().held }
		assert.EqualValues(t, 1, held())
		set("10.0.0.4") // while the batch is in flight
		acknowledge(time.Hour)
		time.Sleep(maxHold - time.Millisecond)
		synctest.Wait()
		wasSent(2)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		wasSent(3, "no message is held for longer")
		acknowledge(0)
		assert.True(t, server.Clients()[0].BehindSince.IsZero())
		set("10.0.0.5")
		synctest.Wait()
		wasSent(4, "it does not pause")
		acknowledge(time.Second)
		c.announce(time.Now()) // of what it has
		assert.False(t, server.Clients()[0].BehindSince.IsZero())
		time.Sleep(time.Second)
		synctest.Wait()
		wasSent(4)
		assert.True(t, server.Clients()[0].BehindSince.IsZero())
		set("10.0.0.6")
		synctest.Wait()
		wasSent(5, "its pause has ended")
		before := held()
		acknowledge(longPause - time.Millisecond)
		set("10.0.0.7")
		time.Sleep(longPause)
		synctest.Wait()
		wasSent(6)
		assert.Equal(t, before, held(), "it would pause less if it were sent less")
	})
}

// A Feed reports how long it will apply nothing more: for the interval of its run.
func TestAFeedSaysForHowLongItPauses(t *testing.T) {
	server := serve(t, Options{Source: newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)}, socket(t))
	feed, err := remote.NewFeed(remote.Options{Targets: []string{server.target}, State: stateN1})
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		assert.NoError(t, kubeproxy.Run(t.Context(), kubeproxy.Options{Feed: feed, Sink: &sink.Recorder{},
			MinInterval: time.Hour}))
	})
	t.Cleanup(wg.Wait)
	server.awaitClients(t, current)
	server.mu.Lock()
	defer server.mu.Unlock()
	for c := range server.byNode["n1"] {
		c.mu.Lock()
		assert.True(t, c.pausedUntil.After(c.since))
		c.mu.Unlock()
	}
}
