package brain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// at gives objects a resourceVersion.
func at(version string, objects ...metav1.Object) []metav1.Object {
	for _, o := range objects {
		o.SetResourceVersion(version)
	}
	return objects
}

// webAt is a service with an endpoint, as of a resourceVersion.
func webAt(version, address string) []metav1.Object { return at(version, web("a", address)...) }

func clusterAt(version, address string) *cluster {
	return newCluster(append(at("1", baseObjects()...), webAt(version, address)...)...)
}

// movedNode is a node that has lost the first of its servers, whose state it has.
type movedNode struct {
	rec    *sink.Recorder
	health *health.Proxy
	first  *cluster
}

func failOver(t *testing.T, wait time.Duration, first *cluster, others ...*replica) *movedNode {
	t.Helper()
	f := &movedNode{&sink.Recorder{}, health.New(0), first}
	a := serve(t, Options{Source: first, limits: limits{minInterval: -1}}, socket(t))
	targets := []string{a.target}
	var gates []proxy
	for _, r := range others {
		gate := newProxy(t, r.target)
		gate.Block()
		gates, targets = append(gates, gate), append(targets, gate.target)
	}
	run(t, kubeproxy.Options{Sink: f.rec, Health: f.health},
		remote.Options{Targets: targets, State: stateN1, FreshnessWait: wait})
	awaitState(t, first, stateN1, f.rec)
	a.awaitClients(t, current)
	f.rec.TakeWaves()
	for _, gate := range gates {
		gate.Unblock()
	}
	a.stop()
	return f
}

// quick is a server that does not hold up those that it sends away.
func quick(t *testing.T, c *cluster) *replica {
	return serve(t, Options{Source: c, limits: limits{minInterval: -1, maxCatchUp: time.Millisecond}}, socket(t))
}

// A node does not apply an older state from a replica whose watch lags. Once the replica has caught up, the node uses
// it.
func TestANodeDoesNotGoBackToAReplicaThatLags(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	second := clusterAt("10", "10.0.0.1")
	b := quick(t, second)
	f := failOver(t, time.Hour, clusterAt("20", "10.0.0.2"), b)
	require.Eventually(t, func() bool { return b.sent("behind") >= 1 }, testTimeout, time.Millisecond)
	assert.Empty(t, f.rec.TakeWaves())
	second.set(webAt("21", "10.0.0.3")...)
	lines := awaitState(t, second, stateN1, f.rec)
	b.awaitClients(t, current)
	assert.Equal(t, []string{"DeleteEndpoint default/a:http/TCP -> 10.0.0.2:8080",
		"SetEndpoint default/a:http/TCP -> 10.0.0.3:8080 sets=Cluster", "Sync"}, append(lines, f.rec.TakeLines()...))
	assert.True(t, f.health.WentBack().IsZero())
}

// A replica that lags for a moment makes its clients wait until it has caught up: they need not connect again.
func TestAReplicaThatCatchesUpSoonSendsNobodyAway(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	second := clusterAt("10", "10.0.0.1")
	b := serve(t, Options{Source: second, limits: limits{minInterval: -1, maxCatchUp: time.Hour}}, socket(t))
	f := failOver(t, time.Hour, clusterAt("20", "10.0.0.2"), b)
	b.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 1 })
	second.set(webAt("21", "10.0.0.3")...)
	awaitState(t, second, stateN1, f.rec)
	b.awaitClients(t, current)
	assert.Zero(t, b.sent("behind"))
	assert.Equal(t, 1, b.sent("compared")+b.sent("resumed_diff"), "by digests, or by how new the state is")
}

// If there is a replica that does not lag, a node uses that one.
func TestANodePrefersAReplicaThatDoesNotLag(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	fresh := clusterAt("20", "10.0.0.2")
	lags, c := quick(t, clusterAt("10", "10.0.0.1")), quick(t, fresh)
	f := failOver(t, time.Hour, clusterAt("20", "10.0.0.2"), lags, c)
	c.awaitClients(t, current)
	assert.Empty(t, f.rec.TakeWaves())
	fresh.set(webAt("30", "10.0.0.4")...)
	awaitState(t, fresh, stateN1, f.rec)
	assert.Zero(t, lags.sent("compared"))
}

// The wait is bounded, whatever version a server has claimed. After it the node has the other server's state and mark,
// reports that, and forgets the claim.
func TestANodeGoesBackAfterTheWaitAndSaysSo(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	const absurd = "18446744073709551615"
	second, third := clusterAt("10", "10.0.0.1"), clusterAt("11", "10.0.0.3")
	b, c := quick(t, second), quick(t, third)
	gate := newProxy(t, c.target)
	gate.Block()
	f := failOver(t, 50*time.Millisecond, clusterAt(absurd, "10.0.0.2"), b, &replica{c.Server, gate.target, nil})
	awaitState(t, second, stateN1, f.rec)
	b.awaitClients(t, current)
	assert.Positive(t, b.sent("behind"))
	assert.False(t, f.health.WentBack().IsZero())
	gate.Unblock()
	b.stop()
	awaitState(t, third, stateN1, f.rec)
	assert.Zero(t, c.sent("behind"))
}

// A replica that knows that nothing has changed is not behind, however old the last change that it knows of.
func TestAReplicaThatHasHeardThatNothingChangedDoesNotLag(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	second := clusterAt("10", "10.0.0.1")
	b := serve(t, Options{Source: second, limits: limits{minInterval: -1, maxCatchUp: time.Millisecond,
		heartbeat: time.Second}}, socket(t)) // the first answer to a heartbeat says that the client is current
	second.heard(&corev1.Service{}, "25")
	second.heard(&discoveryv1.EndpointSlice{}, "24")
	f := failOver(t, time.Hour, clusterAt("20", "10.0.0.2"), b)
	awaitState(t, second, stateN1, f.rec)
	assert.Zero(t, b.sent("behind"))
	b.awaitClients(t, current)
	assert.True(t, f.health.WentBack().IsZero())
}

// A replica that has the same state as the node, but has seen less of the Nodes, may know less of their addresses. One
// that delivers no Nodes is not held to that.
func TestTheSameStateIsNotResumedWithOlderNodes(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	first := func() *cluster {
		return newCluster(append(at("20", baseObjects()...), webAt("10", "10.0.0.1")...)...)
	}
	second := clusterAt("10", "10.0.0.1")
	b := quick(t, second)
	f := failOver(t, time.Hour, first(), b)
	require.Eventually(t, func() bool { return b.sent("behind") >= 1 }, testTimeout, time.Millisecond)
	assert.Zero(t, b.sent("resumed"))
	second.heard(&corev1.Node{}, "20")
	b.awaitClients(t, current)
	assert.Equal(t, 1, b.sent("resumed"))
	assert.Empty(t, f.rec.TakeWaves())

	none := serve(t, Options{Source: withoutNodes{clusterAt("10", "10.0.0.1")},
		limits: limits{minInterval: -1, maxCatchUp: time.Millisecond}}, socket(t))
	failOver(t, time.Hour, first(), none)
	none.awaitClients(t, current)
	assert.Equal(t, []int{0, 1}, []int{none.sent("behind"), none.sent("resumed")})
}

// A node that has waited long enough resumes the same state at a replica that never sees the newest Nodes, and forgets
// that there were newer ones.
func TestOlderNodesHoldNobodyUpForEver(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	b, c := quick(t, clusterAt("10", "10.0.0.1")), quick(t, clusterAt("10", "10.0.0.1"))
	gate := newProxy(t, c.target)
	gate.Block()
	failOver(t, 50*time.Millisecond, newCluster(append(at("20", baseObjects()...), webAt("10", "10.0.0.1")...)...), b,
		&replica{c.Server, gate.target, nil})
	b.awaitClients(t, current)
	assert.Positive(t, b.sent("behind"))
	assert.Equal(t, 1, b.sent("resumed"))
	gate.Unblock()
	b.stop()
	c.awaitClients(t, current)
	assert.Equal(t, []int{0, 1}, []int{c.sent("behind"), c.sent("resumed")})
}

// A restarted server does not know when objects that it does not find were deleted: the version of its list counts.
func TestWhatARestartedServerDoesNotFindStaysDeleted(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	first, second := clusterAt("10", "10.0.0.1"), clusterAt("10", "10.0.0.1")
	for _, o := range web("a") {
		first.delete(o)
	}
	first.listed = "30"
	b := quick(t, second)
	second.heard(&corev1.Service{}, "25")
	f := failOver(t, time.Hour, first, b)
	require.Eventually(t, func() bool { return b.sent("behind") >= 1 }, testTimeout, time.Millisecond)
	assert.Empty(t, f.rec.TakeWaves())
}

// Clients of older versions do not say how new their state is, and are served as before.
func TestAClientThatDoesNotSayHowNewItIsIsServed(t *testing.T) {
	b := quick(t, clusterAt("10", "10.0.0.1"))
	other := wire.DigestMessage(wire.Digest{}, wire.Digest{})
	hello := &remotev1.Hello{Node: "n1", Resume: &remotev1.Resume{Digest: other}}
	u, err := rawStream(t, b.target, hello).Recv()
	require.NoError(t, err)
	assert.Equal(t, remotev1.Kind_COMPARE, u.Kind)
	hello.Seen = &remotev1.Seen{EndpointSlices: 11}
	u, err = rawStream(t, b.target, hello).Recv()
	require.NoError(t, err)
	assert.Equal(t, []any{remotev1.Kind_LATER, true}, []any{u.Kind, u.Behind})
	hello.Resume.InstanceID = b.instance + "-x"
	u, err = rawStream(t, b.target, hello).Recv()
	require.NoError(t, err)
	assert.Equal(t, remotev1.Kind_COMPARE, u.Kind, "what it has is this server's own")
}

// Each batch has the version of the kind of object that changed, and none where versions are not numbers.
func TestABatchSaysHowNewItIs(t *testing.T) {
	c := clusterAt("10", "10.0.0.1")
	b := quick(t, c)
	stream := rawStream(t, b.target, &remotev1.Hello{Node: "n1"})
	next := func() wire.Mark {
		batch := receiveBatch(t, stream)
		sync := batch[len(batch)-1].Sync
		sendAck(t, stream, sync.Revision)
		return wire.MarkOf(sync.Seen)
	}
	assert.Equal(t, wire.Mark{10, 10, 1, 0}, next())
	slice := func(version, address string) metav1.Object { return webAt(version, address)[1] }
	c.set(slice("20", "10.0.0.2"))
	assert.Equal(t, wire.Mark{0, 20, 0, 0}, next())
	for _, none := range []string{"", "x", "0", "-1", "021", "18446744073709551616"} {
		c.set(slice(none, "10.0.1.1"))
		assert.Zero(t, next(), none)
		c.set(slice(none, "10.0.1.2"))
		assert.Zero(t, next(), none)
	}
	c.set(at("30", on("a", "n1").Build())...) // some of it is the node's own
	assert.Equal(t, wire.Mark{0, 30, 0, 0}, next())
	c.heard(&discoveryv1.EndpointSlice{}, "5") // the API server was restored
	c.set(slice("6", "10.0.0.2"))
	assert.Equal(t, wire.Mark{0, 6, 0, 0}, next())
}

// The mark of a state does not cover changes that have not been published, and that of a new class does not cover
// changes that arrived while it was computed.
func TestAStateClaimsOnlyWhatItHas(t *testing.T) {
	s, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	h := serverHandler{s}
	update := func(objects ...metav1.Object) {
		for _, o := range objects {
			h.Update(watch.Change{Object: o})
		}
	}
	update(clusterObjects("10")...)
	h.Synced()
	s.publish(t.Context())
	c, err := s.beginClass(classB)
	require.NoError(t, err)
	first := c.workOut(t.Context(), 0, time.Now())
	update(webAt("20", "10.0.0.2")...) // the Service is as it was
	s.publish(t.Context())
	s.finishClass(c, first)
	h.Heard(&discoveryv1.EndpointSlice{}, "25")
	assert.Equal(t, progress{wire.Mark{10, 10, 10}, wire.Mark{10, 10, 10}, s.source.nodeVIPs}, *c.progress)
	s.publish(t.Context())
	assert.Equal(t, progress{wire.Mark{20, 25, 10}, wire.Mark{10, 20, 10}, s.source.nodeVIPs}, *c.progress)
	assert.Equal(t, c.progress, c.current.progress)
	h.Heard(&discoveryv1.EndpointSlice{}, "30")
	node := baseObjects()[0]
	update(at("31", node)...) // as it was
	assert.Equal(t, progress{wire.Mark{20, 30, 31}, wire.Mark{10, 20, 10}, s.source.nodeVIPs}, *c.progress)
}

func clusterObjects(version string) []metav1.Object {
	return at(version, append(baseObjects(), web("a", "10.0.0.1")...)...)
}
