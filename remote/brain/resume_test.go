package brain

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// sent is how many batches of a kind a server has sent.
func (r *replica) sent(kind string) int {
	return int(testutil.ToFloat64(r.metrics.batches.WithLabelValues(kind)))
}

func current(clients []ClientStatus) bool {
	return len(clients) == 1 && clients[0].Revision > 0 && clients[0].BehindSince.IsZero()
}

func allCurrent(clients []ClientStatus) bool {
	for _, c := range clients {
		if c.Revision == 0 || !c.BehindSince.IsZero() {
			return false
		}
	}
	return len(clients) == 2
}

var stateN1 = localstate.Options{NodeName: "n1"}

func TestAClientThatComesBackToAnUnchangedServerIsSentOneMessage(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1", "10.0.0.2")...)...)
	server := serve(t, Options{Source: c}, socket(t))
	p, rec := followThroughProxy(t, c, server)
	server.awaitClients(t, current)
	rec.TakeWaves()
	for i := range 3 {
		p.Cut()
		require.Eventually(t, func() bool { return server.sent("resumed") == i+1 }, testTimeout, 1e6)
		server.awaitClients(t, current)
	}
	assert.Equal(t, 1, server.sent("reset"))
	assert.Empty(t, rec.TakeWaves(), "nothing differs: no call")
}

// A program that first reads its node is not sent everything twice.
func TestAfterAskingForTheNodeAFeedGoesOnFromThere(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1", "10.0.0.2")...)...)
	server := serve(t, Options{Source: c}, socket(t))
	feed, err := remote.NewFeed(remote.Options{Targets: []string{server.target}, State: stateN1})
	require.NoError(t, err)
	rec := &sink.Recorder{}
	node, err := feed.Node(quiet(t))
	require.NoError(t, err)
	assert.Equal(t, c.want(t, stateN1).Node(), node)
	ctx, cancel := context.WithCancel(quiet(t))
	result := make(chan error, 1)
	run := func() {
		result <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: rec, MinInterval: -1})
	}
	go run()
	awaitState(t, c, stateN1, rec)
	server.awaitClients(t, current)
	assert.Equal(t, []int{1, 1}, []int{server.sent("reset"), server.sent("resumed")})
	assert.EqualError(t, kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: &sink.Recorder{}}),
		"the feed is already running")
	cancel()
	require.NoError(t, <-result)

	// Another run goes on from there, too, and tells its own sink everything.
	ctx, cancel = context.WithCancel(quiet(t))
	rec = &sink.Recorder{}
	go run()
	awaitState(t, c, stateN1, rec)
	server.awaitClients(t, current)
	assert.Equal(t, []int{1, 2}, []int{server.sent("reset"), server.sent("resumed")})
	cancel()
	require.NoError(t, <-result)

	feed, err = remote.NewFeed(remote.Options{Targets: []string{socket(t)}, State: stateN1})
	require.NoError(t, err)
	_, err = feed.Node(ctx)
	assert.ErrorIs(t, err, context.Canceled)
}

func TestAClientThatComesBackIsSentWhatChangedMeanwhile(t *testing.T) {
	c := newCluster(append(baseObjects(), append(web("a", "10.0.0.1"), web("b", "10.0.0.2")...)...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	p := newProxy(t, server.target)
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{p.target}, State: stateN1})
	// A second one keeps the class at work while the first is away.
	other := &sink.Recorder{}
	stateN3 := localstate.Options{NodeName: "n3"}
	follow(t, other, remote.Options{Targets: []string{server.target}, State: stateN3})
	awaitState(t, c, stateN1, rec)
	awaitState(t, c, stateN3, other)
	server.awaitClients(t, allCurrent)
	rec.TakeWaves()
	p.Block()
	for _, o := range web("b") { // deleted while the client cannot hear it
		c.delete(o)
	}
	awaitState(t, c, stateN3, other)
	c.set(web("a", "10.0.0.3")...)
	awaitState(t, c, stateN3, other)
	p.Unblock()
	lines := awaitState(t, c, stateN1, rec)
	server.awaitClients(t, allCurrent)
	lines = append(lines, rec.TakeLines()...)
	assert.Equal(t, []string{
		"DeleteEndpoint default/b:http/TCP -> 10.0.0.2:8080", "DeleteService default/b",
		"DeleteEndpoint default/a:http/TCP -> 10.0.0.1:8080",
		"SetEndpoint default/a:http/TCP -> 10.0.0.3:8080 sets=Cluster",
		"Sync"}, lines)
	assert.Equal(t, 1, server.sent("resumed_diff"))
	assert.Equal(t, 0, server.sent("compared"))
	assert.Empty(t, rec.Violations())
}

// Revisions of different replicas are not comparable, so the difference to another replica is found by digests. These
// clusters, like files, have no resourceVersions, so it cannot be known that the second one is older in part: only then
// may the node get an older state. TestANodeDoesNotGoBackTo... has clusters with resourceVersions.
func TestAnotherReplicaSendsWhatItHasDifferently(t *testing.T) {
	var objects, services = baseObjects(), []string{"a", "b", "c", "d", "e", "f"}
	for i, s := range services {
		objects = append(objects, web(s, "10.0.0."+string(rune('1'+i)))...)
	}
	first, second := newCluster(objects...), newCluster(objects...)
	a := serve(t, Options{Source: first, limits: limits{minInterval: -1}}, socket(t))
	b := serve(t, Options{Source: second, limits: limits{minInterval: -1}}, socket(t))
	p := newProxy(t, b.target)
	p.Block()
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{a.target, p.target}, State: stateN1})
	awaitState(t, first, stateN1, rec)
	a.awaitClients(t, current)

	// The second replica is ahead in one thing and behind in another, and has other revisions.
	second.set(web("a", "10.0.0.1", "10.0.0.9")...)
	for _, o := range web("f") {
		second.delete(o)
	}
	first.set(web("new", "10.0.0.77")...)
	awaitState(t, first, stateN1, rec)
	a.awaitClients(t, current)
	rec.TakeWaves()
	p.Unblock()
	a.stop()
	lines := awaitState(t, second, stateN1, rec)
	b.awaitClients(t, current)
	lines = append(lines, rec.TakeLines()...)
	assert.Equal(t, 1, b.sent("compared"))
	assert.Equal(t, 0, b.sent("reset"))
	assert.Equal(t, []string{
		"DeleteEndpoint default/f:http/TCP -> 10.0.0.6:8080", "DeleteService default/f",
		"DeleteEndpoint default/new:http/TCP -> 10.0.0.77:8080", "DeleteService default/new",
		"SetEndpoint default/a:http/TCP -> 10.0.0.9:8080 sets=Cluster",
		"Sync"}, lines)
	assert.Empty(t, rec.Violations())
}

func TestAReplicaWithTheSameStateSendsOneMessage(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	own := kube.EndpointSlice("default/a").Port("http", 8080).Endpoint("10.0.0.1").OnNode("n1").Build()
	c.set(own) // only node n1 has this
	a := serve(t, Options{Source: c}, socket(t))
	b := serve(t, Options{Source: c}, socket(t))
	p := newProxy(t, b.target)
	p.Block()
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{a.target, p.target}, State: stateN1})
	awaitState(t, c, stateN1, rec)
	a.awaitClients(t, current)
	rec.TakeWaves()
	p.Unblock()
	a.stop()
	b.awaitClients(t, current)
	assert.Equal(t, 1, b.sent("resumed"))
	assert.Empty(t, rec.TakeWaves())
}

// InstanceID and Rev are enough for a client without a digest, if they are the server's own.
func TestARevisionOfTheSameServerIsResumed(t *testing.T) {
	c := newCluster(append(append(baseObjects(), naming("b")), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	first := rawStream(t, server.target, &remotev1.Hello{Node: "n1"})
	batch := receiveBatch(t, first)
	require.Equal(t, remotev1.Kind_RESET, batch[0].Kind)
	has := &remotev1.Resume{InstanceID: batch[0].InstanceID, Revision: batch[len(batch)-1].Sync.Revision}
	sendAck(t, first, has.Revision)
	c.set(web("b", "10.0.0.2")...)
	diff := receiveBatch(t, first)
	require.Equal(t, remotev1.Kind_DIFF, diff[0].Kind)

	again := receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "n1", Resume: has}))
	require.Equal(t, remotev1.Kind_DIFF, again[0].Kind)
	require.Len(t, again[0].Services, 1)
	assert.Equal(t, "b", again[0].Services[0].Name)
	elsewhere := receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "n2", Resume: has}))
	assert.Equal(t, remotev1.Kind_RESET, elsewhere[0].Kind,
		"node n2 is in another zone: the revision is of another state")
	has.InstanceID = "another"
	restarted := receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "n1", Resume: has}))
	assert.Equal(t, remotev1.Kind_RESET, restarted[0].Kind)
}

// The state of a client that was away for longer than versions are kept is compared, however long that was.
func TestWhoComesBackLateIsCompared(t *testing.T) {
	c := newCluster(append(baseObjects(), append(web("a", "10.0.0.1"), web("b", "10.0.0.2")...)...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1, keep: -1}}, socket(t))
	p, rec := followThroughProxy(t, c, server)
	server.awaitClients(t, current)
	p.Block()
	server.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 0 })
	rec.TakeWaves()
	c.set(web("a", "10.0.0.5")...)
	p.Unblock()
	lines := awaitState(t, c, stateN1, rec)
	server.awaitClients(t, current)
	lines = append(lines, rec.TakeLines()...)
	assert.Equal(t, 1, server.sent("compared"))
	assert.Equal(t, []string{"DeleteEndpoint default/a:http/TCP -> 10.0.0.1:8080",
		"SetEndpoint default/a:http/TCP -> 10.0.0.5:8080 sets=Cluster", "Sync"}, lines)
}

// A program that stores its state elsewhere continues from a revision, and gets the changes since.
func TestAnotherProgramGoesOnFromAPosition(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t,
		Options{Source: c, limits: limits{minInterval: -1, heartbeat: 5 * time.Millisecond}}, socket(t))
	run := func(resume *remote.Resume) (*remote.Feed, *sink.Recorder, func()) {
		feed, err := remote.NewFeed(remote.Options{Targets: []string{server.target}, State: stateN1, Resume: resume})
		require.NoError(t, err)
		rec := &sink.Recorder{}
		ctx, cancel := context.WithCancel(quiet(t))
		done := make(chan error, 1)
		go func() {
			done <- kubeproxy.Run(ctx, kubeproxy.Options{Feed: feed, Sink: rec, MinInterval: -1})
		}()
		_, err = rec.NextWave(t.Context())
		require.NoError(t, err)
		return feed, rec, func() {
			cancel()
			require.NoError(t, <-done)
		}
	}
	feed, _, stop := run(nil)
	at := feed.Position()
	stop()
	before := server.sent("reset")
	c.set(web("b", "10.0.0.2")...)
	_, rec, stop := run(&at)
	defer stop()
	assert.NotContains(t, rec.Services(), name("a"))
	for len(rec.Services()) == 0 { // it comes with the first wave, or after it
		_, err := rec.NextWave(t.Context())
		require.NoError(t, err)
	}
	assert.Contains(t, rec.Services(), name("b"))
	c.set(web("c", "10.0.0.3")...)
	for len(rec.Services()) < 2 {
		_, err := rec.NextWave(t.Context())
		require.NoError(t, err)
	}
	assert.Equal(t, before, server.sent("reset"))
}

// A newer client may send fields that this server does not know.
func TestWhatANewerClientSaysDoesNoHarm(t *testing.T) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serve(t, Options{Source: c}, socket(t))
	hello := &remotev1.Hello{Node: "n1", Options: &remotev1.Options{},
		Resume: &remotev1.Resume{Digest: &remotev1.Digest{Version: 99, Shared: []byte("another"), Own: []byte("kind")}}}
	for _, m := range []proto.Message{hello, hello.Options, hello.Resume} {
		m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 7))
	}
	batch := receiveBatch(t, rawStream(t, server.target, hello))
	assert.Equal(t, remotev1.Kind_RESET, batch[0].Kind, "digests of another version are not compared")
	assert.Len(t, batch[0].Services, 1)

	hello.Resume.InstanceID, hello.Resume.Revision = batch[0].InstanceID, batch[len(batch)-1].Sync.Revision
	stream := rawStream(t, server.target, hello)
	batch = receiveBatch(t, stream)
	assert.Equal(t, remotev1.Kind_DIFF, batch[0].Kind, "it has a revision of this server")
	assert.Empty(t, batch[0].Services)
	newer := &remotev1.Request{}
	newer.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 999, protowire.VarintType), 7))
	require.NoError(t, stream.Send(newer))
	sendAck(t, stream, batch[len(batch)-1].Sync.Revision)
	server.awaitClients(t, func(all []ClientStatus) bool {
		return slices.ContainsFunc(all, func(c ClientStatus) bool { return c.BehindSince.IsZero() })
	})
}

// A version is kept for a time that begins when the next one replaces it, because until then a client may have received
// it.
func TestAVersionIsKeptFromItsEnd(t *testing.T) {
	now := time.Now()
	revision := uint64(0)
	at := func(ago time.Duration) *version {
		revision++
		return &version{at: now.Add(-ago), revision: revision}
	}
	c := &history{recent: []*version{at(10 * time.Hour), at(2 * time.Hour), at(time.Hour)}, current: at(time.Minute)}
	c.base.version = c.current
	long := c.recent[2]
	c.forget(now.Add(-30*time.Minute), 1)
	assert.Equal(t, []*version{long}, c.recent, "the others ended an hour ago")
	c.current = at(40 * time.Minute)
	c.base.version = c.current
	c.forget(now.Add(-30*time.Minute), 1)
	assert.Empty(t, c.recent)
}

// A kept version takes the memory of what has changed, not of whole services, and the number of versions follows from
// that. Connected clients may have older ones.
func TestVersionsAreKeptForACertainNumberOfBytes(t *testing.T) {
	const most = 20_000
	for _, endpoints := range []int{1, 250} {
		c := newCluster(baseObjects()...)
		server := serve(t, Options{Source: c, KeepBytes: most, limits: limits{minInterval: -1}}, socket(t))
		class := server.classOf(t, "n1")
		var addresses []string
		for i := range endpoints {
			addresses = append(addresses, fmt.Sprintf("10.0.0.%d", i))
		}
		c.set(web("a", addresses...)...) // two objects, so the server may make one or two versions of them
		server.publish(t.Context())
		server.mu.Lock()
		before := len(class.recent)
		server.mu.Unlock()
		for i := range maxSinceBase + 50 {
			addresses[0] = fmt.Sprintf("10.0.%d.%d", 1+i/250, i%250)
			c.set(web("a", addresses...)...)
			server.publish(t.Context())
		}
		server.mu.Lock()
		each := class.current.bytes
		assert.Less(t, each, 600, endpoints)
		assert.InDelta(t, most/each, len(class.recent)-class.resumable, 5, endpoints)
		assert.Len(t, class.recent, before+maxSinceBase+50)
		base, known := class.indexOf(class.base.version)
		assert.True(t, known)
		assert.GreaterOrEqual(t, base, 50, "the base follows")
		sum := func(versions []*version) (bytes int) {
			for _, v := range versions {
				bytes += v.bytes
			}
			return bytes
		}
		assert.Equal(t, sum(append(class.recent[1:], class.current)), class.kept)
		assert.Equal(t, sum(append(class.recent[class.resumable+1:], class.current)), class.resumableBytes)
		server.mu.Unlock()
	}
}

// The kept bytes are those of the kept versions, whether a revision replaces one endpoint or all of them.
func TestKeptBytesAreThoseThatAreKept(t *testing.T) {
	const endpoints = 20_000
	for name, every := range map[string]int{"all endpoints": 1, "every hundredth": 100} {
		t.Run(name, func(t *testing.T) {
			h, _ := hugeService(t, 10, 0)
			require.NoError(t, h.makeClass(t.Context(), localstate.Class{}))
			h.mu.Lock()
			of := h.classes[localstate.Class{}]
			h.mu.Unlock()
			replace := func(with byte) {
				for i := range endpoints / 100 {
					b := kube.EndpointSlice("default/huge").Port("http", 8080)
					for n := range 100 {
						last := byte(0)
						if n%every == 0 {
							last = with
						}
						b.Endpoint(netip.AddrFrom4([4]byte{10 + last, byte(i), 0, byte(n)}).String())
					}
					slice := b.Build()
					slice.Name = fmt.Sprint("huge-", i)
					h.Update(watch.Change{Object: slice})
				}
				h.publish(t.Context())
			}
			for i := range byte(4) {
				replace(1 + i)
			}
			heap := func() int { // once nothing is left of other tests, which may take several collections
				var m runtime.MemStats
				for before := uint64(math.MaxUint64); ; before = m.HeapAlloc {
					runtime.GC()
					if runtime.ReadMemStats(&m); m.HeapAlloc+m.HeapAlloc/100 > before {
						return int(m.HeapAlloc)
					}
				}
			}
			full := heap()
			claimed := of.kept
			of.recent, of.byRoot, of.batches = nil, nil, newBatches(of.batches.buckets, nil)
			of.current.deltas = nil
			freed := full - heap()
			assert.Greater(t, claimed, freed*2/3)
			assert.Less(t, claimed, freed*3/2)
			runtime.KeepAlive(h)
		})
	}
}

// If a service that differs is most of the state, everything is sent, because that is encoded once for all clients.
func TestALargeServiceThatDiffersIsSentWithEverything(t *testing.T) {
	var addresses []string
	for i := range 100 {
		addresses = append(addresses, fmt.Sprintf("10.0.0.%d", i))
	}
	objects := append(baseObjects(), append(web("small", "10.0.1.1"), web("large", addresses...)...)...)
	first, second := newCluster(objects...), newCluster(objects...)
	second.set(web("large", addresses[1:]...)...)
	a := serve(t, Options{Source: first}, socket(t))
	b := serve(t, Options{Source: second}, socket(t))
	p := newProxy(t, b.target)
	p.Block()
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{a.target, p.target}, State: stateN1})
	awaitState(t, first, stateN1, rec)
	a.awaitClients(t, current)
	rec.TakeWaves()
	p.Unblock()
	a.stop()
	lines := awaitState(t, second, stateN1, rec)
	b.awaitClients(t, current)
	lines = append(lines, rec.TakeLines()...)
	assert.Equal(t, []string{"DeleteEndpoint default/large:http/TCP -> 10.0.0.0:8080", "Sync"}, lines)
	batches := b.classOf(t, "n1").batches
	batches.mu.Lock()
	defer batches.mu.Unlock()
	assert.NotNil(t, batches.by[nil], "the full state is encoded")
}
