package brain

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

var classB = localstate.Class{Zone: "b"}

// idle returns a client that a server has admitted and that has the newest state. Nothing is sent to it; the client
// only records that there is something new.
func (r *replica) idle(t *testing.T, node string) *client {
	t.Helper()
	s := &client{server: &r.common, node: node, ctx: t.Context(), sends: true}
	require.NoError(t, r.join(s, localstate.Options{}))
	t.Cleanup(func() { r.leave(s) })
	view, _, ok, err := s.newest()
	require.NoError(t, err)
	require.True(t, ok)
	s.has = view
	return s
}

// woken reports whether a client has something to look at. It is the truth once another client has what was published.
func (s *client) woken() bool {
	s.server.mu.Lock() // publish announces a revision to all whom it concerns before it lets go
	defer s.server.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.news
}

// A client is not even woken by a change that does not concern it.
func TestWhomItDoesNotConcernIsNotWoken(t *testing.T) {
	slice := func() *kube.EndpointSliceBuilder {
		return kube.EndpointSlice("default/a").Port("http", 8080).Endpoint("10.0.0.1").ForZones("a").OnNode("n1").
			Endpoint("10.0.0.9").ForZones("b").OnNode("n2")
	}
	c := newCluster(append(baseObjects(), kube.Service("default/a").Port("http", 80).Build(), slice().Build())...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	sinks := map[string]*sink.Recorder{"n2": {}, "n3": {}}
	for node, rec := range sinks {
		follow(t, rec, remote.Options{Targets: []string{server.target}, State: localstate.Options{NodeName: node}})
		awaitState(t, c, localstate.Options{NodeName: node}, rec)
	}
	inA, inB := server.idle(t, "n1"), server.idle(t, "n2")
	c.set(slice().Endpoint("10.0.0.2").ForZones("a").OnNode("n3").Build())
	awaitState(t, c, localstate.Options{NodeName: "n3"}, sinks["n3"])
	assert.False(t, inB.woken(), "zone a alone")
	assert.True(t, inA.woken())
	assert.True(t, inA.takeNews())

	// The endpoint is on node n1, which is in zone a and does not use it. A node of zone b would have it as its own.
	c.set(slice().Endpoint("10.0.0.2").ForZones("a").OnNode("n3").
		Endpoint("10.0.0.3").ForZones("b").OnNode("n1").Build())
	awaitState(t, c, localstate.Options{NodeName: "n2"}, sinks["n2"])
	assert.True(t, inB.woken())
	assert.False(t, inA.woken(), "zone b alone")
}

// A client with a batch in flight is not sent further changes before it has acknowledged the batch.
func TestABusyClientSleepsUntilTheAcknowledgement(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	s := server.idle(t, "n1")
	s.sending(s.has)
	s.sends = false
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	c.set(web("a", "10.0.0.2")...)
	awaitState(t, c, stateN1, rec)
	assert.True(t, s.woken())
	assert.False(t, s.begin(), "there is a batch in flight")
	news, err := s.take(&remotev1.Request{Ack: &remotev1.Ack{Revision: s.sent.revision}})
	require.NoError(t, err)
	assert.True(t, news)
	assert.True(t, s.begin())
}

// stuck is a stream on which nothing can be sent.
type stuck struct {
	stream
	sending chan struct{}
	ctx     context.Context
}

func (s stuck) SendMsg(any) error {
	s.sending <- struct{}{}
	<-s.ctx.Done()
	return s.ctx.Err()
}

// A client that acknowledges without reading is soon stuck: nothing more fits into its stream.
func TestStuckClientsHoldUpNobody(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	awaitState(t, c, stateN1, rec)
	ctx, release := context.WithCancel(t.Context())
	sending := make(chan struct{}, 10)
	var clients []*client
	for range 3 {
		s := server.idle(t, "n1")
		s.stream, s.introduced, s.sends = stuck{sending: sending, ctx: ctx}, true, false
		clients = append(clients, s)
	}
	for _, address := range []string{"10.0.0.2", "10.0.0.3", "10.0.0.4"} {
		c.set(web("a", address)...)
		awaitState(t, c, stateN1, rec)
	}
	for range clients {
		<-sending
	}
	assert.Empty(t, sending, "each is sent one message")
	release()
	for _, s := range clients {
		s.senders.Wait()
	}
}

// While the first state of a class is computed, clients of other classes are sent changes; and a client that waits for
// the class is sent its first state and the changes since.
func TestANewClassHoldsUpNobody(t *testing.T) {
	c := newCluster(append(append(baseObjects(), naming("b")), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	inA, inB := &sink.Recorder{}, &sink.Recorder{}
	stateN2 := localstate.Options{NodeName: "n2"}
	follow(t, inA, remote.Options{Targets: []string{server.target}, State: stateN1})
	awaitState(t, c, stateN1, inA)

	class, err := server.beginClass(classB)
	require.NoError(t, err)
	require.NotNil(t, class)
	first := make(chan classUpdate)
	go func() { first <- class.workOut(quiet(t), 0, time.Now()) }()
	follow(t, inB, remote.Options{Targets: []string{server.target}, State: stateN2})
	server.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 2 })
	again, err := server.beginClass(classB)
	require.NoError(t, err)
	assert.Nil(t, again, "it is worked out once")
	c.set(web("a", "10.0.0.2")...)
	c.set(web("b", "10.0.0.3")...)
	awaitState(t, c, stateN1, inA)
	assert.Empty(t, inB.TakeWaves())
	server.finishClass(class, <-first)
	awaitState(t, c, stateN2, inB)
	assert.Empty(t, inB.Violations())
}

// Clients connect and acknowledge without waiting while a revision is being computed, however long that takes.
func TestNoStreamWaitsForWhatIsWorkedOut(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	p, _ := followThroughProxy(t, c, server)
	server.awaitClients(t, current)
	server.work.Lock()
	p.Cut()
	require.Eventually(t, func() bool { return server.sent("resumed") == 1 }, testTimeout, time.Millisecond)
	server.awaitClients(t, current)
	server.work.Unlock()
}

// History is bounded by time, not by a count: a client that reconnects after thousands of revisions is sent the
// difference.
func TestThousandsOfRevisionsLaterTheDifferenceIsSent(t *testing.T) {
	c := newCluster(append(baseObjects(), append(web("a", "10.0.0.1"), web("b", "10.0.0.2")...)...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	p, rec := followThroughProxy(t, c, server)
	server.awaitClients(t, current)
	p.Block()
	server.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 0 })
	rec.TakeWaves()
	const revisions = 3000
	before := server.idle(t, "n1").has.revision
	for i := range revisions {
		c.set(web("a", "10.0.1."+string(rune('1'+i%2)))...)
		server.publish(t.Context())
	}
	require.GreaterOrEqual(t, server.idle(t, "n1").has.revision, before+revisions)
	p.Unblock()
	lines := awaitState(t, c, stateN1, rec)
	require.Eventually(t, func() bool { return server.sent("resumed_diff") == 1 }, testTimeout, time.Millisecond)
	assert.NotContains(t, append(lines, rec.TakeLines()...), "SetService default/b")
	assert.Equal(t, 0, server.sent("compared"))
	assert.Equal(t, 1, server.sent("reset"))
}

// A server, or a proxy in front of it, that ends connections of a certain age costs one message each time.
func TestConnectionsThatEndByTheirAgeForceNoFullStates(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	ctx, cancel := context.WithCancel(quiet(t))
	server, err := New(ctx, Options{Source: c})
	require.NoError(t, err)
	target := socket(t)
	ln, err := Listen(ctx, target, 0)
	require.NoError(t, err)
	codec, err := wire.NewCodec()
	require.NoError(t, err)
	aged := grpc.NewServer(grpc.ForceServerCodecV2(codec), grpc.InTapHandle(endable), grpc.KeepaliveParams(
		keepalive.ServerParameters{MaxConnectionAge: 50 * time.Millisecond, MaxConnectionAgeGrace: time.Millisecond}))
	remotev1.RegisterBrainServer(aged, &brainService{server: server, nodeOf: ClaimedNode, ctx: ctx})
	ended := make(chan error, 2)
	go func() { ended <- server.Run(ctx) }()
	go func() { ended <- aged.Serve(ln) }()
	defer func() {
		cancel()
		aged.Stop()
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
	}()
	require.Eventually(t, server.ready, testTimeout, time.Millisecond)
	r := &replica{Server: server, target: target}
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{target}, State: stateN1})
	awaitState(t, c, stateN1, rec)
	r.awaitClients(t, current)
	rec.TakeWaves()
	resets, resumed := r.sent("reset"), r.sent("resumed") // on a busy machine the first connections may end too soon
	require.Eventually(t, func() bool { return r.sent("resumed") >= resumed+3 }, testTimeout, time.Millisecond)
	assert.Equal(t, resets, r.sent("reset"))
	assert.Empty(t, rec.TakeWaves(), "nothing differs: no call")
}

// Clients that block the goroutine which delivers to them delay the others only for moments, however many they are.
func TestManyStuckClientsHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		last := make(chan time.Time, 1)
		start := time.Now()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			forEach(maxPerPrincipal+1, func(i int) {
				if i == maxPerPrincipal {
					last <- time.Now()
				} else {
					<-release
				}
			})
		}()
		assert.LessOrEqual(t, (<-last).Sub(start), 16*heldUp)
		close(release)
		<-ended
	})
}

// Clients of one node that do not answer leave the others their slots.
func TestOneNodeDoesNotTakeAllSlots(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{maxFullStates: maxSlotUsers + 1, maxWait: time.Millisecond}},
		socket(t))
	resume := &remotev1.Resume{Digest: wire.DigestMessage(wire.Digest{}, wire.Digest{})}
	kinds := map[remotev1.Kind]int{}
	for range 10 {
		u, err := rawStream(t, server.target, &remotev1.Hello{Node: "n1", Resume: resume}).Recv()
		require.NoError(t, err)
		kinds[u.Kind]++
	}
	assert.Equal(t, map[remotev1.Kind]int{
		remotev1.Kind_COMPARE: maxSlotUsers, remotev1.Kind_LATER: 10 - maxSlotUsers}, kinds)
	u, err := rawStream(t, server.target, &remotev1.Hello{Node: "n2"}).Recv()
	require.NoError(t, err)
	assert.Equal(t, remotev1.Kind_RESET, u.Kind)
}

// A stream ends when it is old and its client is up to date, which costs one message.
func TestAnOldStreamEnds(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{heartbeat: 100 * time.Millisecond,
		maxAge: 10 * time.Millisecond}}, socket(t))
	acknowledged := false
	for !acknowledged { // on a busy machine a stream may be old before anything is sent on it
		stream := rawStream(t, server.target, &remotev1.Hello{Node: "n1"})
		var err error
		for err == nil {
			var u *remotev1.Update
			if u, err = stream.Recv(); err == nil && u.Kind == remotev1.Kind_RESET {
				require.NotNil(t, u.Sync, "the state is one message")
				sendAck(t, stream, u.Sync.Revision)
				acknowledged = true
			}
		}
		assert.Equal(t, codes.Aborted, status.Code(err), err)
	}
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	_, err := rec.NextWave(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return server.sent("resumed") >= 1 }, testTimeout, time.Millisecond)
	resets, resumed := server.sent("reset"), server.sent("resumed")
	require.Eventually(t, func() bool { return server.sent("resumed") >= resumed+2 }, testTimeout, time.Millisecond)
	assert.Equal(t, resets, server.sent("reset"))
	assert.Empty(t, rec.TakeWaves(), "nothing differs: no call")
}
