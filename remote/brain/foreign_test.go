package brain

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// on is a slice of a service with one endpoint, on a node.
func on(service, node string) *kube.EndpointSliceBuilder {
	return kube.EndpointSlice("default/"+service).Port("http", 8080).Endpoint("10.244.0.9").OnNode(node)
}

// awaitLocal waits until a node has the endpoint of a service as a local one.
func awaitLocal(t *testing.T, rec *sink.Recorder, service string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	for {
		for _, e := range rec.Endpoints() {
			if e.Port.Service == name(service) && e.Local {
				return
			}
		}
		_, err := rec.NextWave(ctx)
		require.NoError(t, err)
	}
}

// The parts of nodes of other zones are not kept, and are computed when such a node connects.
func TestANodeFindsWhatItHasOfItsOwnInAnotherZone(t *testing.T) {
	c := newCluster(append(baseObjects(), naming("a", "b"), web("a")[0], on("a", "n2").Build())...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	var rec [2]sink.Recorder
	for i, node := range []string{"n1", "n2"} {
		state := stateN1
		state.NodeName = node
		follow(t, &rec[i], remote.Options{Targets: []string{server.target}, State: state})
		awaitState(t, c, state, &rec[i])
	}
	zone := func(node string) *class {
		server.mu.Lock()
		defer server.mu.Unlock()
		for s := range server.byNode[node] {
			return s.class
		}
		return nil
	}
	a, b := zone("n1"), zone("n2")
	kept := func(c *class) int {
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(c.own)
	}
	assert.Zero(t, kept(a))
	assert.Equal(t, 1, kept(b))

	n2 := kube.Node("n2").Zone("a").InternalIP("192.0.2.2").PodCIDR("10.244.2.0/24")
	c.set(n2.Build())
	require.Eventually(t, func() bool { return zone("n2") == a && kept(a) == 1 }, testTimeout, time.Millisecond)
	state := stateN1
	state.NodeName = "n2"
	awaitState(t, c, state, &rec[1])
	server.awaitClients(t, func(clients []ClientStatus) bool { return clients[0].BehindSince.IsZero() })
	awaitLocal(t, &rec[1], "a")
	assert.Empty(t, rec[1].Violations())
}

// When its Node object is deleted, a node keeps its zone, and so its own parts: here the hints that name it, while the
// state of its class stays the same.
func TestANodeWithoutItsObjectFindsWhatItHasOfItsOwn(t *testing.T) {
	slice := func(hints ...string) *discoveryv1.EndpointSlice {
		b := kube.EndpointSlice("default/a").Port("http", 8080).Endpoint("10.244.0.8").OnNode("n3").ForNodes(hints...)
		return b.Endpoint("10.244.0.9").OnNode("n3").ForNodes("n3").Build()
	}
	c := newCluster(append(baseObjects(), naming("a"), web("a")[0], slice("n2"))...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	var rec sink.Recorder
	follow(t, &rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	awaitState(t, c, stateN1, &rec)
	require.Len(t, rec.Endpoints(), 2)
	c.delete(baseObjects()[0])
	require.Eventually(t, func() bool { return rec.Node().NotEligible }, testTimeout, time.Millisecond)
	c.set(slice("n1"))
	require.Eventually(t, func() bool { return len(rec.Endpoints()) == 1 }, testTimeout, time.Millisecond)
}

// The names of deleted nodes are forgotten.
func TestForeignNodesAreForgottenWhenTheyAreGone(t *testing.T) {
	c := newCluster(append(baseObjects(), naming("a", "b"), web("a")[0], on("a", "n2").Build())...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	var rec sink.Recorder
	follow(t, &rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	awaitState(t, c, stateN1, &rec)
	server.work.Lock()
	defer server.work.Unlock()
	for _, class := range server.classes {
		assert.True(t, class.isForeign("n2"))
		class.foreign["gone"], class.foreignLimit = struct{}{}, 1
		class.forgetNodes(nil)
		assert.True(t, class.isForeign("n2"))
		assert.False(t, class.isForeign("gone"))
	}
}

// A client that connects again after its Node was deleted, or has lost its podCIDRs, gets the same state as one that
// was connected all the time.
func TestWhatWasKnownOfANodeStaysForTheNextStream(t *testing.T) {
	node := kube.Node("n1").Zone("a").InternalIP("192.0.2.1")
	withCIDR, without := node.PodCIDR("10.244.1.0/24").Build(), kube.Node("n1").Zone("a").InternalIP("192.0.2.1").Build()
	deleted := watch.Change{Object: withCIDR, Deleted: true}
	for what, changes := range map[string][]watch.Change{
		"gone":             {deleted},
		"without podCIDRs": {{Object: without}},
		"made anew":        {deleted, {Object: without}},
	} {
		for _, detect := range []localstate.DetectLocal{{}, {NodeCIDR: true}} {
			t.Run(fmt.Sprint(what, detect.NodeCIDR), func(t *testing.T) {
				t.Parallel() // they wait until clients connect again
				c := newCluster(append(append(baseObjects(), withCIDR), web("a", "10.0.0.1")...)...)
				opts := localstate.Options{NodeName: "n1", DetectLocal: detect}
				direct, err := localstate.New(quiet(t), opts, localstate.ClusterOptions{})
				require.NoError(t, err)
				tell := func(changes ...watch.Change) {
					for _, x := range changes {
						_, err := direct.Apply(x.Object, x.Deleted)
						require.NoError(t, err)
					}
				}
				tell(watch.Change{Object: withCIDR})
				server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
				p, rec := newProxy(t, server.target), &sink.Recorder{}
				follow(t, rec, remote.Options{Targets: []string{p.target}, State: opts})
				awaitState(t, c, opts, rec)
				c.change(changes...)
				p.Cut()
				slice := web("a", "10.0.0.2")[1]
				c.set(slice)
				tell(append(changes, watch.Change{Object: web("a")[0]}, watch.Change{Object: slice})...)
				var want sink.Recorder
				direct.Flush(&want)
				require.Eventually(t, func() bool {
					return server.sent("resumed")+server.sent("resumed_diff")+server.sent("compared") > 0 &&
						difference(&want, rec) == ""
				}, testTimeout, time.Millisecond)
			})
		}
	}
}
