package brain

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

var classA = localstate.Class{Zone: "a"}

// hinted is the slice of a service with an endpoint for each zone. "" means that it has no hint.
func hinted(service string, zones ...string) *discoveryv1.EndpointSlice {
	b := kube.EndpointSlice("default/"+service).Port("http", 8080)
	for i, zone := range zones {
		if b.Endpoint(fmt.Sprint("10.0.1.", i+1)); zone != "" {
			b.ForZones(zone)
		}
	}
	return b.Build()
}

// addZones adds Nodes, two in each of a number of zones, and a service with an endpoint on each of them.
func addZones(c *cluster, zones int) (nodes []string) {
	slice := kube.EndpointSlice("default/web").Port("http", 8080)
	for i := range 2 * zones {
		node := fmt.Sprint("node-", i)
		address := netip.AddrFrom4([4]byte{192, 0, byte(i / 250), byte(1 + i%250)}).String()
		c.set(kube.Node(node).Zone(fmt.Sprint("rack-", i/2)).InternalIP(address).Build())
		slice.Endpoint(fmt.Sprintf("10.244.%d.%d", i/250, 1+i%250)).OnNode(node)
		nodes = append(nodes, node)
	}
	c.set(kube.Service("default/web").Port("http", 80).Build(), slice.Build())
	return nodes
}

// zoneOfClass returns the zone of the class that a node has.
func (r *replica) zoneOfClass(node string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for c := range r.byNode[node] {
		if c.class != nil {
			return c.class.key.Zone
		}
	}
	return "none"
}

func (r *replica) numAwaited() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.named.awaited)
}

// withSlot runs f while the server makes no class of its own accord.
func (r *replica) withSlot(t *testing.T, f func()) {
	t.Helper()
	done, err := r.classSlots.take(t.Context(), principal{})
	require.NoError(t, err)
	f()
	done()
}

// followNodes runs a client for each node, and waits until all have their state.
func followNodes(t *testing.T, c *cluster, server *replica, nodes ...string) map[string]*sink.Recorder {
	t.Helper()
	recs := map[string]*sink.Recorder{}
	for _, node := range nodes {
		recs[node] = &sink.Recorder{}
		state := localstate.Options{NodeName: node}
		follow(t, recs[node], remote.Options{Targets: []string{server.target}, State: state})
		awaitState(t, c, state, recs[node])
	}
	server.awaitClients(t, areCurrent(nodes...))
	return recs
}

// areCurrent reports whether all clients of some nodes are up to date.
func areCurrent(nodes ...string) func([]ClientStatus) bool {
	return func(all []ClientStatus) bool {
		for _, x := range all {
			if slices.Contains(nodes, x.Node) && (x.Revision == 0 || !x.BehindSince.IsZero()) {
				return false
			}
		}
		return true
	}
}

func awaitAll(t *testing.T, c *cluster, recs map[string]*sink.Recorder) {
	t.Helper()
	for node, rec := range recs {
		awaitState(t, c, localstate.Options{NodeName: node}, rec)
		assert.Empty(t, rec.Violations())
	}
}

// Racks that are labelled as zones cost nothing while no hint names them.
func TestNodesInZonesThatNoHintNamesAreOneClass(t *testing.T) {
	const zones = 100
	c := newCluster()
	nodes := addZones(c, zones)
	server := serve(t, Options{Source: c, MaxClasses: 1, limits: limits{minInterval: -1}}, socket(t))
	clients := map[string]*client{}
	for _, node := range nodes {
		clients[node] = server.idle(t, node)
	}
	check := func() {
		t.Helper()
		require.Equal(t, 1, server.numClasses())
		for _, x := range server.Clients() {
			assert.False(t, x.WithoutZone, x.Node)
			assert.NotEmpty(t, x.Zone)
		}
		for node, client := range clients {
			view, _, ok, err := client.newest()
			require.True(t, ok && err == nil, err)
			require.NotNil(t, view.own, node)
			part := view.own.part(name("web"))
			require.Len(t, part.Endpoints, 1, "its own endpoint")
			assert.True(t, part.Endpoints[0].Local)
			assert.Equal(t, node, view.node.Name)
			assert.NotEmpty(t, view.node.Zone)
		}
	}
	check()
	recs := followNodes(t, c, server, nodes[0], nodes[3], nodes[199])
	// Its endpoints come later, and change.
	more := kube.EndpointSlice("default/more").Port("http", 8080)
	for i, node := range nodes {
		more.Endpoint(fmt.Sprintf("10.245.%d.%d", i/250, 1+i%250)).OnNode(node)
	}
	c.set(kube.Service("default/more").Port("http", 80).Build(), more.Build())
	awaitAll(t, c, recs)
	check()
	assert.Zero(t, server.numAwaited())
}

// Options that ignore zone hints make all zones one, whatever hints there are.
func TestNodesThatIgnoreZoneHintsAreOneClass(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web")[0], hinted("web", "a", "b"))...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	for i, node := range nodeNames {
		state := localstate.Options{NodeName: node, NoZoneHints: true}
		var rec sink.Recorder
		follow(t, &rec, remote.Options{Targets: []string{server.target}, State: state})
		awaitState(t, c, state, &rec)
		require.Len(t, rec.Endpoints(), 2)
		require.Equal(t, 1, server.numClasses(), i)
	}
	for _, x := range server.Clients() {
		assert.False(t, x.WithoutZone)
	}
}

// A hint that names a zone moves the nodes of that zone, and wakes no other one.
func TestTheNodesOfAZoneMoveWhenAHintNamesIt(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web", "10.0.1.1", "10.0.1.2")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	recs := followNodes(t, c, server, nodeNames...)
	other := server.idle(t, "n2")
	require.Equal(t, 1, server.numClasses())

	sent := server.sent("diff")
	c.set(hinted("web", "a", "elsewhere"))
	awaitAll(t, c, recs)
	for _, node := range []string{"n1", "n3"} {
		require.Len(t, recs[node].Endpoints(), 1)
		assert.Equal(t, "a", server.zoneOfClass(node))
	}
	server.awaitClients(t, areCurrent("n1", "n3"))
	assert.Equal(t, sent+2, server.sent("diff"), "of nodes n1 and n3 alone")
	assert.False(t, other.woken())
	assert.Equal(t, 2, server.numClasses())
	assert.Zero(t, server.numAwaited())

	// Two hints at once, of which one names no zone of a node; and none for a zone that had one.
	c.set(hinted("web", "b", "nowhere"))
	awaitAll(t, c, recs)
	assert.Len(t, recs["n2"].Endpoints(), 1)
	assert.Len(t, recs["n1"].Endpoints(), 2)
	require.Eventually(t, func() bool { return server.zoneOfClass("n2") == "b" }, testTimeout, time.Millisecond)
	for _, x := range server.Clients() {
		assert.False(t, x.WithoutZone, x.Node)
	}
}

// Hints count for a zone, whatever becomes of the slice that has them: it may have no Service yet, or a headless one.
func TestAHintOfASliceThatServesNothingIsNoHarm(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web", "10.0.1.1")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	recs := followNodes(t, c, server, nodeNames...)
	headless := kube.Service("default/headless").ClusterIP("None").Port("http", 80).Build()
	for _, objects := range [][]metav1.Object{
		{hinted("late", "a", "b")}, {web("late")[0]}, {headless, hinted("headless", "a", "b")}, {hinted("headless", "c")},
		{hinted("web", "a", "")}, {hinted("web", "a", "a")}, {kube.EndpointSlice("default/web").Build()},
	} {
		c.set(objects...)
		awaitAll(t, c, recs)
	}
	assert.LessOrEqual(t, server.numClasses(), 3)
}

// A hint that comes and goes moves a client once, and its class is computed once. When the client connects again, it
// gets the class without a zone, in which it finds the state that it has.
func TestAHintThatComesAndGoesMovesAClientOnce(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web", "10.0.1.1", "10.0.1.2")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	p, rec := followThroughProxy(t, c, server)
	still := server.idle(t, "n2") // it keeps the class without a zone
	var class *group
	for i := range 50 {
		sent := server.sent("diff")
		c.set(naming("a"))
		require.Eventually(t, func() bool { return server.zoneOfClass("n1") == "a" }, testTimeout, time.Millisecond)
		server.mu.Lock()
		made := server.classes[classA]
		server.mu.Unlock()
		if i == 0 {
			class = made
		}
		require.Same(t, class, made)
		c.delete(naming())
		c.set(kube.Node("n1").Zone("a").InternalIP(fmt.Sprint("192.0.2.", i+1)).PodCIDR("10.244.1.0/24").Build())
		c.set(web("marker", fmt.Sprint("10.0.2.", i+1))...)
		awaitState(t, c, stateN1, rec)
		assert.LessOrEqual(t, server.sent("diff")-sent, 4, "one of the move, one of the Node and two of the marker")
		require.Equal(t, "a", server.zoneOfClass("n1"), "it stays, also if its Node changes")
	}
	assert.Equal(t, 2, server.numClasses())
	for _, x := range server.Clients() {
		assert.False(t, x.WithoutZone, x.Node)
	}
	rec.TakeWaves()
	p.Cut()
	require.Eventually(t, func() bool { return server.zoneOfClass("n1") == "" && server.sent("resumed") == 1 },
		testTimeout, time.Millisecond)
	assert.Empty(t, rec.TakeWaves(), "it is the same state")
	assert.Same(t, server.classes[localstate.Class{}], server.groupOf(still))

	// It moves again, to a class that is as old as that without a zone; the revision is a new one.
	revision := func() (n uint64) {
		for _, x := range server.Clients() {
			if x.Node == "n1" && x.BehindSince.IsZero() {
				n = x.Revision
			}
		}
		return n
	}
	require.Eventually(t, func() bool { return revision() > 0 }, testTimeout, time.Millisecond)
	before := revision()
	c.set(naming("a"))
	require.Eventually(t, func() bool { return server.zoneOfClass("n1") == "a" && revision() > before }, testTimeout,
		time.Millisecond)
	assert.Same(t, class, server.classes[classA])
}

func (r *replica) groupOf(c *client) *group {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.classes[c.class.key]
}

// While the class of its zone is not complete, a client is sent changes as before; and when it moves, nothing that was
// gone comes back.
func TestAClientThatWillMoveIsServedMeanwhile(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web", "10.0.1.1", "10.0.1.2")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	recs := followNodes(t, c, server, "n1")
	rec := recs["n1"]
	want := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return len(rec.Endpoints()) == n }, testTimeout, time.Millisecond)
	}
	server.withSlot(t, func() {
		c.set(hinted("web", "a", "b"))
		require.Eventually(t, func() bool { return server.numAwaited() == 1 }, testTimeout, time.Millisecond)
		c.set(web("other", "10.0.2.1")...)
		want(3) // those of all zones, a moment longer
		class, err := server.beginClass(classA)
		require.NoError(t, err)
		first := class.workOut(quiet(t), 0, time.Now())
		c.set(web("other", "10.0.2.2")...)
		c.set(kube.Node("n1").Zone("a").InternalIP("192.0.2.77").PodCIDR("10.244.1.0/24").Build())
		require.Eventually(t, func() bool { return rec.Node().IPs[0] == netip.MustParseAddr("192.0.2.77") }, testTimeout,
			time.Millisecond)
		want(3)
		assert.Equal(t, "", server.zoneOfClass("n1"))
		for _, x := range server.Clients() {
			assert.False(t, x.WithoutZone, "it is about to move")
		}
		server.awaitClients(t, current)
		rec.TakeWaves()
		server.finishClass(class, first)
	})
	lines := awaitState(t, c, stateN1, rec)
	assert.Equal(t, "a", server.zoneOfClass("n1"))
	server.awaitClients(t, current)
	for _, wave := range rec.TakeWaves() {
		lines = append(lines, wave.Lines()...)
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "Sync" })
	assert.Equal(t, []string{"DeleteEndpoint default/web:http/TCP -> 10.0.1.2:8080"}, lines)
}

// A class whose first state is there may lack what the client's class has had meanwhile, until the next revision.
func TestAClientDoesNotMoveToAClassThatIsBehind(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web", "10.0.1.1", "10.0.1.2")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	followNodes(t, c, server, "n1")
	server.withSlot(t, func() {
		c.set(hinted("web", "a", "b"))
		require.Eventually(t, func() bool { return server.numAwaited() == 1 }, testTimeout, time.Millisecond)
		class, err := server.beginClass(classA)
		require.NoError(t, err)
		first := class.workOut(quiet(t), 0, time.Now())
		func() {
			server.mu.Lock()
			defer server.mu.Unlock()
			for client := range server.byNode["n1"] {
				class.current = first.version
				assert.Equal(t, withoutZone(classA), server.classFor(client))
				delete(server.named.awaited, classA) // as the next revision does
				assert.Equal(t, classA, server.classFor(client))
			}
			class.current = nil
		}()
		server.finishClass(class, first)
	})
	require.Eventually(t, func() bool { return server.zoneOfClass("n1") == "a" }, testTimeout, time.Millisecond)
}

// A client that reconnects meanwhile to the same server does not move to a class that is behind, either.
func TestAClientThatConnectsAgainDoesNotMoveToAClassThatIsBehind(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web", "10.0.1.1", "10.0.1.2")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	p, rec := followThroughProxy(t, c, server)
	followNodes(t, c, server, "n3") // of the same zone: it keeps the class awaited while n1 is away
	server.withSlot(t, func() {
		c.set(hinted("web", "a", "b"))
		require.Eventually(t, func() bool { return server.numAwaited() == 1 }, testTimeout, time.Millisecond)
		class, err := server.beginClass(classA)
		require.NoError(t, err)
		first := class.workOut(quiet(t), 0, time.Now())
		c.set(web("other", "10.0.2.1")...) // which that state lacks
		require.Eventually(t, func() bool { return len(rec.Endpoints()) == 3 }, testTimeout, time.Millisecond)
		server.awaitClients(t, areCurrent("n1"))
		rec.TakeWaves()
		resumed := server.sent("resumed")
		p.Cut()
		require.Eventually(t, func() bool { return server.sent("resumed") == resumed+1 }, testTimeout, time.Millisecond)
		assert.Equal(t, "", server.zoneOfClass("n1"))
		assert.Empty(t, rec.TakeWaves(), "it is the same state")
		server.finishClass(class, first)
	})
	awaitState(t, c, stateN1, rec)
	assert.Len(t, rec.Endpoints(), 2)
	require.Eventually(t, func() bool { return server.zoneOfClass("n1") == "a" }, testTimeout, time.Millisecond)
}

// A class that nobody waits for any more is not made; one that a client makes which connects meanwhile serves all.
func TestTheClientsOfAZoneChangeBeforeTheyMove(t *testing.T) {
	c := newCluster(append(baseObjects(), web("web", "10.0.1.1", "10.0.1.2")...)...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	awaited := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return server.numAwaited() == n }, testTimeout, time.Millisecond)
	}
	var rec sink.Recorder
	stop := follow(t, &rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	awaitState(t, c, stateN1, &rec)
	server.withSlot(t, func() {
		c.set(hinted("web", "a", "b"))
		awaited(1)
		stop()
		server.awaitClients(t, upToDate(0))
	})
	awaited(0)
	assert.Equal(t, 1, server.numClasses())

	c.delete(hinted("web"))
	recs := followNodes(t, c, server, "n1")
	server.withSlot(t, func() {
		c.set(hinted("web", "a", "b"))
		awaited(1)
		c.set(naming("b"))
		c.delete(naming())
		third := localstate.Options{NodeName: "n3"} // of the same zone
		recs["n3"] = &sink.Recorder{}
		follow(t, recs["n3"], remote.Options{Targets: []string{server.target}, State: third})
		awaitAll(t, c, recs)
		awaited(0)
	})
	assert.Equal(t, 2, server.numClasses())
	assert.Len(t, recs["n1"].Endpoints(), 1)

	// The hint is gone before the class is made.
	c.set(hinted("web", "a", ""), kube.Node("n2").Zone("c").Build())
	recs["n2"] = followNodes(t, c, server, "n2")["n2"]
	server.withSlot(t, func() {
		c.set(naming("c"))
		awaited(1)
		c.delete(naming())
		c.set(web("marker", "10.0.2.1")...)
		awaitAll(t, c, recs)
	})
	awaited(0)
	assert.Equal(t, 2, server.numClasses())
	assert.Equal(t, "", server.zoneOfClass("n2"))
}

// A node may get another zone, whether hints name the old one, the new one, both or neither.
func TestANodeMovesBetweenZonesThatHintsNameOrNot(t *testing.T) {
	c := newCluster(append(baseObjects(), kube.Service("default/web").Port("http", 80).Build(),
		hinted("web", "named-1", "named-2"), web("local")[0], on("local", "n1").Build())...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	recs := followNodes(t, c, server, nodeNames...)
	for i, zone := range []string{"other", "named-1", "named-2", "a", "named-2", "other", "", "named-1", ""} {
		c.set(kube.Node("n1").Zone(zone).InternalIP("192.0.2.1").PodCIDR("10.244.1.0/24").Build())
		awaitAll(t, c, recs)
		c.set(on("local", nodeNames[i%2]).Build()) // sometimes with an endpoint of its own, sometimes without
		awaitAll(t, c, recs)
		switch zone {
		case "named-1", "named-2":
			assert.Equal(t, zone, server.zoneOfClass("n1"))
		default:
			assert.Equal(t, "", server.zoneOfClass("n1"))
		}
	}
	assert.LessOrEqual(t, server.numClasses(), 3)
}

// A class keeps the parts of those nodes that it serves; that without a zone no longer those of nodes that have moved.
func TestTheClassWithoutAZoneKeepsThePartsOfItsNodes(t *testing.T) {
	c := newCluster()
	nodes := addZones(c, 3)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	recs := followNodes(t, c, server, nodes[0], nodes[2])
	kept := func(key localstate.Class) (own []string, owners int) {
		server.work.Lock()
		defer server.work.Unlock()
		server.mu.Lock()
		defer server.mu.Unlock()
		for _, node := range nodes {
			if server.classes[key].own[node] != nil {
				own = append(own, node)
			}
		}
		return own, len(server.classes[key].owners[name("web")])
	}
	all, owners := kept(localstate.Class{})
	assert.Equal(t, nodes, all)
	assert.Equal(t, 6, owners)
	server.withSlot(t, func() {
		c.set(naming("rack-0"))
		require.Eventually(t, func() bool { return server.numAwaited() == 1 }, testTimeout, time.Millisecond)
		own, owners := kept(localstate.Class{})
		assert.Equal(t, nodes, own, "until they move")
		assert.Equal(t, len(nodes), owners)
	})
	require.Eventually(t, func() bool {
		own, owners := kept(localstate.Class{})
		return owners == len(own) && len(own) == 4 && own[0] == nodes[2]
	}, testTimeout, time.Millisecond)
	rack, _ := kept(localstate.Class{Zone: "rack-0"})
	assert.Equal(t, nodes[:2], rack)

	slice := on("late", nodes[0]).Endpoint("10.244.0.10").OnNode(nodes[1]).Endpoint("10.244.0.11").OnNode(nodes[2])
	c.set(web("late")[0], slice.Build())
	awaitAll(t, c, recs)
	c.delete(naming())
	recs[nodes[1]] = &sink.Recorder{}
	follow(t, recs[nodes[1]], remote.Options{Targets: []string{server.target},
		State: localstate.Options{NodeName: nodes[1]}})
	awaitAll(t, c, recs)
	assert.Equal(t, "", server.zoneOfClass(nodes[1]))
	own, _ := kept(localstate.Class{})
	assert.Equal(t, nodes, own, "those of the zone, once one of them is back")
}

// The limit counts when hints name zones; and clients that it leaves without their zone say so.
func TestOnlyZonesThatHintsNameCountForTheLimit(t *testing.T) {
	const zones, limit = 6, 2
	c := newCluster()
	nodes := addZones(c, zones)
	server := serve(t, Options{Source: c, MaxClasses: limit, limits: limits{minInterval: -1}}, socket(t))
	recs := followNodes(t, c, server, nodes...)
	without := func() (n int) {
		for _, x := range server.Clients() {
			if x.WithoutZone {
				n++
			}
		}
		return n
	}
	assert.Zero(t, without())
	require.Equal(t, 1, server.numClasses())
	c.set(naming(numbered("rack-", zones)...))
	require.Eventually(t, func() bool { return server.numAwaited() == 0 && without() == 2*(zones-limit) }, testTimeout,
		time.Millisecond)
	assert.Equal(t, limit+1, server.numClasses())
	awaitAll(t, c, recs)
	for _, address := range []string{"10.245.0.1", "10.245.0.2"} { // their own parts follow, wherever they are
		slice := kube.EndpointSlice("default/late").Port("http", 8080)
		for i, node := range nodes {
			slice.Endpoint(fmt.Sprint(address, i)).OnNode(node)
		}
		c.set(kube.Service("default/late").Port("http", 80).InternalLocal().Build(), slice.Build())
		awaitAll(t, c, recs)
	}
	c.delete(naming())
	require.Eventually(t, func() bool { return without() == 0 }, testTimeout, time.Millisecond, "no hint counts")
	awaitAll(t, c, recs)
}

// A class that the limit did not allow serves all clients of its zone as soon as one of them can make it.
func TestAClassThatIsMadeLaterServesThoseWithoutTheirZone(t *testing.T) {
	c := newCluster(append(baseObjects(), kube.Service("default/web").Port("http", 80).Build(),
		hinted("web", "a", "b"))...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1, maxClasses: 1}}, socket(t))
	var rec sink.Recorder
	stop := follow(t, &rec, remote.Options{Targets: []string{server.target}, State: localstate.Options{NodeName: "n2"}})
	require.Eventually(t, func() bool { return len(rec.Endpoints()) == 1 }, testTimeout, time.Millisecond)
	recs := map[string]*sink.Recorder{"n1": {}, "n3": {}}
	join := func(node string) {
		follow(t, recs[node], remote.Options{Targets: []string{server.target},
			State: localstate.Options{NodeName: node}})
	}
	join("n1")
	require.Eventually(t, func() bool { return len(recs["n1"].Endpoints()) == 2 }, testTimeout, time.Millisecond)
	server.awaitClients(t, func(all []ClientStatus) bool { return slices.ContainsFunc(all, ClientStatus.isWithout) })
	stop()
	server.awaitClients(t, upToDate(1))
	assert.Equal(t, "", server.zoneOfClass("n1"))
	join("n3")
	awaitAll(t, c, recs)
	assert.Len(t, recs["n1"].Endpoints(), 1)
	server.awaitClients(t, func(all []ClientStatus) bool { return !slices.ContainsFunc(all, ClientStatus.isWithout) })

	// One to which clients are about to move is not deleted to make room.
	server.mu.Lock()
	defer server.mu.Unlock()
	g := &group{class: class{key: classB, history: history{current: &version{}}}}
	assert.True(t, server.unused(g))
	server.named.awaited[classB] = struct{}{}
	assert.False(t, server.unused(g))
	delete(server.named.awaited, classB)
}

func (c ClientStatus) isWithout() bool { return c.WithoutZone }

// If there is no room for a class without a zone, that of the zone serves a node as well.
func TestAClassThatIsThereServesANodeForWhichThereIsNoRoom(t *testing.T) {
	c := newCluster(append(baseObjects(), naming("a"))...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1, maxClasses: 1}}, socket(t))
	server.idle(t, "n1")
	for i := range classesWithoutZone {
		receiveBatch(t, rawStream(t, server.target, withOptions(fmt.Sprint("other-", i), i+1)))
	}
	require.Equal(t, 1+classesWithoutZone, server.numClasses())
	c.delete(naming())
	third := server.idle(t, "n3")
	assert.Equal(t, "a", third.class.key.Zone)
	_, err := rawStream(t, server.target, &remotev1.Hello{Node: "stranger"}).Recv()
	require.Error(t, err)
}

// A principal whose streams name many zones uses a few classes; its other streams stay as they are.
func TestHintsEndNoStreamOfAPrincipal(t *testing.T) {
	c := newCluster(baseObjects()...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	const streams = 3 * maxClassesPerPrincipal
	clients := make([]clientStream, streams)
	for i := range clients {
		clients[i] = rawStream(t, server.target, inZone("n1", fmt.Sprint("zone ", i)))
		batch := receiveBatch(t, clients[i])
		sendAck(t, clients[i], batch[len(batch)-1].Sync.Revision)
	}
	require.Equal(t, 1, server.numClasses())
	c.set(naming(numbered("zone ", streams)...))
	require.Eventually(t, func() bool {
		server.mu.Lock()
		defer server.mu.Unlock()
		used := map[localstate.Class]bool{}
		for c := range server.byNode["n1"] {
			used[c.class.key] = true
		}
		return len(used) == maxClassesPerPrincipal && len(server.named.awaited) == 0
	}, testTimeout, time.Millisecond)
	assert.Equal(t, maxClassesPerPrincipal, server.numClasses())
	assert.Len(t, server.Clients(), streams)
}

// Whoever writes slices may name thousands of zones in turn: only those count that nodes are in, and no class is made
// anew.
func TestThousandsOfZonesAreNamedInTurn(t *testing.T) {
	const zones = 20
	c := newCluster()
	nodes := addZones(c, zones)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	for _, node := range nodes {
		server.idle(t, node)
	}
	recs := followNodes(t, c, server, nodes[0], nodes[39])
	made := map[*group]bool{}
	for i := range 100 {
		names := append(numbered(fmt.Sprint("none-", i, "-"), 1000), fmt.Sprint("rack-", i%zones),
			fmt.Sprint("rack-", (i+7)%zones))
		c.set(naming(names...))
		c.set(web("marker", fmt.Sprint("10.0.2.", i+1))...)
		awaitAll(t, c, recs)
		server.mu.Lock()
		for _, g := range server.classes {
			made[g] = true
		}
		assert.LessOrEqual(t, len(server.named.awaited), zones)
		server.mu.Unlock()
	}
	c.delete(naming())
	require.Eventually(t, func() bool { return server.numAwaited() == 0 }, testTimeout, time.Millisecond)
	assert.LessOrEqual(t, len(made), zones+1)
	server.mu.Lock()
	defer server.mu.Unlock()
	assert.Empty(t, server.named.named)
	assert.Empty(t, server.named.fresh)
	for zone := range server.byZone {
		assert.NotEmpty(t, server.byZone[zone])
	}
}

// A node that restarts with a kept state of the class of its zone resumes in the class without a zone.
func TestAKeptStateResumesWithoutTheZone(t *testing.T) {
	for _, named := range []bool{false, true} {
		t.Run(fmt.Sprint(named), func(t *testing.T) {
			c := newCluster(append(baseObjects(), web("web", "10.0.1.1", "10.0.1.2")...)...)
			if named {
				c.set(naming("a"))
			}
			target := socket(t)
			opts := remote.Options{Targets: []string{target}, State: stateN1,
				Keep: &remote.Keep{File: filepath.Join(t.TempDir(), "state"), After: time.Millisecond}}
			server := serve(t, Options{Source: c}, target)
			var rec, again sink.Recorder
			stop := follow(t, &rec, opts)
			awaitState(t, c, stateN1, &rec)
			server.awaitClients(t, current)
			stop()
			server.stop()
			if named {
				c.delete(naming())
			} else {
				c.set(naming("a"))
			}
			follow(t, &again, opts)
			awaitState(t, c, stateN1, &again)
			server = serve(t, Options{Source: c}, target)
			server.awaitClients(t, current)
			assert.Equal(t, named, server.zoneOfClass("n1") == "")
			assert.Equal(t, 1, server.sent("resumed"))
			assert.Zero(t, server.sent("reset"))
		})
	}
}

// With 64 zones that no hint names a brain keeps as much of each change as with one: it is worked out, encoded and
// stored once.
func TestAChangeCostsTheSameWithManyZones(t *testing.T) {
	cost := func(zones int) (bytes, versions, messages int) {
		c := newCluster()
		for i := range 64 {
			c.set(kube.Node(fmt.Sprint("node-", i)).Zone(fmt.Sprint("rack-", i%zones)).Build())
		}
		server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
		for i := range 64 {
			server.idle(t, fmt.Sprint("node-", i))
		}
		rec := followNodes(t, c, server, "node-0")
		for i := range 20 {
			c.set(web("web", fmt.Sprint("10.0.1.", i+1))[1])
			c.set(web("web")[0])
			awaitAll(t, c, rec)
		}
		server.mu.Lock()
		defer server.mu.Unlock()
		for _, g := range server.classes {
			bytes += g.kept
			versions += len(g.recent) + 1
			messages += len(g.batches.by)
		}
		return bytes, versions, messages
	}
	bytes, versions, messages := cost(1)
	manyBytes, manyVersions, manyMessages := cost(64)
	assert.Equal(t, bytes, manyBytes)
	assert.Equal(t, versions, manyVersions)
	assert.Equal(t, messages, manyMessages)
	assert.Positive(t, bytes)
}
