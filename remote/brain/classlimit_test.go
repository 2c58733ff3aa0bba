package brain

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// withOptions is a node without a zone, with the i-th combination of options.
func withOptions(node string, i int) *remotev1.Hello {
	return &remotev1.Hello{Node: node, Options: wire.EncodeOptions(localstate.Options{MasqueradeAll: i&1 != 0,
		DrainingEndpoints: i&2 != 0, AllEndpoints: i&4 != 0, ExtraSets: model.EndpointSets(i >> 3)})}
}

// zonesOf adds so many Nodes, each in a zone of its own, and a service whose endpoints have hints for all of them.
func zonesOf(c *cluster, n int) {
	slice := kube.EndpointSlice("default/web").Port("http", 8080)
	for i := range n {
		node, zone := fmt.Sprint("node-", i), fmt.Sprint("zone-", i)
		c.set(kube.Node(node).Zone(zone).InternalIP(fmt.Sprint("192.0.2.", i+1)).Build())
		slice.Endpoint(fmt.Sprint("10.244.0.", i+1)).OnNode(node).ForZones(zone)
	}
	c.set(kube.Service("default/web").Port("http", 80).Build(), slice.Build())
}

// A cluster may have more zones than there may be classes, if its racks are labelled as zones. The nodes of the other
// zones are served like nodes without a zone: they get all endpoints, and those on the node itself as local ones.
func TestANodeForWhoseZoneThereIsNoClassIsServedWithoutIt(t *testing.T) {
	const zones, limit = 6, 3
	c := newCluster()
	zonesOf(c, zones)
	server := serve(t, Options{Source: c, MaxClasses: limit, limits: limits{minInterval: -1}}, socket(t))
	check := func() {
		t.Helper()
		local := 0
		for i, client := range server.nodesByName(t, zones) {
			require.Equal(t, fmt.Sprint("node-", i), client.Node)
			if !client.WithoutZone {
				local++
			}
		}
		assert.Equal(t, limit, local)
	}
	var recs [zones]sink.Recorder
	for i := range recs {
		follow(t, &recs[i], remote.Options{Targets: []string{server.target},
			State: localstate.Options{NodeName: fmt.Sprint("node-", i)}})
		require.Eventually(t, func() bool { return len(recs[i].Endpoints()) > 0 }, testTimeout, time.Millisecond)
	}
	check()
	for i := range recs {
		assertServed(t, &recs[i], i, i < limit, zones)
	}
	zonesOf(c, zones+1) // one more endpoint, for all but those that keep to their zone
	for i := range recs[limit:] {
		require.Eventually(t, func() bool { return len(recs[limit+i].Endpoints()) == zones+1 }, testTimeout,
			time.Millisecond)
		assertServed(t, &recs[limit+i], limit+i, false, zones+1)
	}
	check()
	assert.LessOrEqual(t, server.numClasses(), limit+1)
}

// assertServed checks what the i-th node has of all endpoints.
func assertServed(t *testing.T, rec *sink.Recorder, i int, inZone bool, all int) {
	t.Helper()
	assert.Equal(t, fmt.Sprint("zone-", i), rec.Node().Zone)
	endpoints := rec.Endpoints()
	if inZone {
		require.Len(t, endpoints, 1)
	} else {
		require.Len(t, endpoints, all)
	}
	own := fmt.Sprintf("10.244.0.%d", i+1)
	found := false
	for _, e := range endpoints {
		assert.True(t, e.Sets.Has(model.ClusterSet))
		is := e.Target.Addr() == netip.MustParseAddr(own)
		assert.Equal(t, is, e.Local)
		found = found || is
	}
	assert.True(t, found)
}

// nodesByName returns the status of so many nodes, sorted by name.
func (r *replica) nodesByName(t *testing.T, n int) []ClientStatus {
	t.Helper()
	out := make([]ClientStatus, n)
	for _, c := range r.Clients() {
		var i int
		_, err := fmt.Sscanf(c.Node, "node-%d", &i)
		require.NoError(t, err)
		out[i] = c
	}
	return out
}

// Clients may name any zone, so zones that no Node has may use at most half of the limit.
func TestZonesThatNoNodeHasLeaveClassesToOthers(t *testing.T) {
	const limit = 8
	c := newCluster(baseObjects()...)
	zonesOf(c, limit/2)
	c.set(naming(numbered("invented-", 2*limit)...))
	server := serve(t, Options{Source: c, MaxClasses: limit, limits: limits{minInterval: -1}}, socket(t))
	for i := range 2 * limit { // each by another node, since one may use few classes
		receiveBatch(t, rawStream(t, server.target, inZone(fmt.Sprint("stranger-", i), fmt.Sprint("invented-", i))))
	}
	assert.Equal(t, limit/2+1, server.numClasses(), "and the class without a zone")
	without := 0
	for _, client := range server.Clients() {
		if client.WithoutZone {
			without++
		}
	}
	assert.Equal(t, 2*limit-limit/2, without)
	for i := range limit/2 - 1 {
		receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: fmt.Sprint("node-", i)}))
	}
	assert.Equal(t, limit, server.numClasses())
	for _, client := range server.Clients() {
		assert.False(t, client.WithoutZone && client.Node[0] == 'n', client.Node)
	}
	// An unused class is deleted to make room, also for a zone that has just appeared.
	c.set(kube.Node("late").Zone("invented-0").Build())
	receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "late"}))
	assert.Equal(t, limit, server.numClasses())
}

// The classes of a principal are computed one after the other, with a pause of nine times as long as the last one took.
// Other principals do not wait for it.
func TestClassesOfOnePrincipalAreComputedOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slots classSlots
		begin := time.Now()
		compute := func(node string) (start time.Duration) {
			done, err := slots.take(t.Context(), principal{node: node})
			require.NoError(t, err)
			start = time.Since(begin)
			time.Sleep(100 * time.Millisecond)
			done()
			return start
		}
		starts := atOnce(4, func() time.Duration { return compute("n1") })
		other := atOnce(1, func() time.Duration { return compute("n2") })
		assert.Zero(t, <-other)
		for i := range 4 {
			assert.Equal(t, time.Duration(i)*time.Second, <-starts)
		}
		time.Sleep(maxClassPause)
		compute("n3")
		assert.Len(t, slots.of, 1, "the others are forgotten")
	})
}

// atOnce runs a function so many times at once, and returns its results as they come.
func atOnce(n int, f func() time.Duration) <-chan time.Duration {
	out := make(chan time.Duration, n)
	for range n {
		go func() { out <- f() }()
	}
	return out
}

// A client that waits for a slot can end its stream.
func TestAClientThatWaitsForItsSlotCanLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slots classSlots
		p := principal{node: "n1"}
		done, err := slots.take(t.Context(), p)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = slots.take(ctx, p)
		require.ErrorIs(t, err, ctx.Err())
		time.Sleep(time.Hour)
		done()
		begin := time.Now()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = slots.take(ctx, p)
		require.ErrorIs(t, err, ctx.Err(), "it pauses")
		done, err = slots.take(t.Context(), p)
		require.NoError(t, err)
		assert.Equal(t, maxClassPause, time.Since(begin), "for so long at most")
		done()
		assert.Zero(t, slots.of[p].clients)
	})
}

// While one node names new zones, only one of its classes is computed at a time; that of another node is computed at
// once.
func TestANodeThatNamesManyZonesHasOneComputedAtATime(t *testing.T) {
	c := newCluster(append(baseObjects(), naming(append(numbered("zone ", maxClassesPerPrincipal), "elsewhere")...))...)
	server := serve(t, Options{Source: c}, socket(t))
	server.work.Lock() // nothing is computed
	for i := range maxClassesPerPrincipal {
		rawStream(t, server.target, inZone("n1", fmt.Sprint("zone ", i)))
	}
	rawStream(t, server.target, inZone("n2", "elsewhere"))
	clients := func(node string) int {
		server.classSlots.mu.Lock()
		defer server.classSlots.mu.Unlock()
		if slot := server.classSlots.of[principal{node: node}]; slot != nil {
			return slot.clients * len(slot.busy)
		}
		return 0
	}
	assert.Eventually(t, func() bool { return clients("n1") == maxClassesPerPrincipal && clients("n2") == 1 },
		testTimeout, time.Millisecond)
	server.work.Unlock()
	require.Eventually(t, func() bool { return server.numClasses() == maxClassesPerPrincipal+1 }, testTimeout,
		time.Millisecond)
}

// A client that changes its class may delete another one at any time, also while a change is applied to all classes.
func TestChangesArriveWhileClassesAreDeleted(t *testing.T) {
	server, err := New(quiet(t), Options{Source: newCluster()})
	require.NoError(t, err)
	const classes, times = 64, 5000
	set := func(i int) {
		server.mu.Lock()
		defer server.mu.Unlock()
		key := localstate.Class{Zone: fmt.Sprint("zone-", i%classes)}
		delete(server.classes, key)
		server.classes[key] = &group{}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for i := range classes * times {
			set(i)
		}
	}()
	for i := range times {
		serverHandler{server}.Update(watch.Change{Object: kube.Service("default/web").Port("http", int32(80+i%2)).Build()})
	}
	<-ended
	assert.Len(t, server.classes, classes)
}
