package brain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// awaitHeartbeat waits until the client of a node, which is up to date, has been sent another heartbeat.
func (r *replica) awaitHeartbeat(t *testing.T, node string) {
	t.Helper()
	spoke := func() (at time.Time) {
		r.mu.Lock()
		defer r.mu.Unlock()
		for s := range r.byNode[node] {
			s.mu.Lock()
			at = s.spoke
			s.mu.Unlock()
		}
		return at
	}
	last := spoke()
	require.Eventually(t, func() bool { return spoke().After(last) }, testTimeout, time.Millisecond)
}

// Protobuf strings have to be UTF-8. An object with a text that is not does not affect other objects.
func TestATextThatIsNotUTF8HarmsNobody(t *testing.T) {
	t.Parallel() // it waits for heartbeats
	objects := append(baseObjects(), append(web("a", "10.0.0.1"), web("b", "10.0.0.2")...)...)
	slice := objects[len(objects)-3].(*discoveryv1.EndpointSlice)
	bad, node := "pod\xff", "n1\xff"
	slice.Endpoints[0].Hostname, slice.Endpoints[0].NodeName = &bad, &node
	slice.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: bad, Name: bad}
	c := newCluster(objects...)
	server := serve(t, Options{Source: c, Cluster: localstate.ClusterOptions{EndpointDetails: true},
		limits: limits{heartbeat: 500 * time.Millisecond, minInterval: -1}}, socket(t))
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{server.target}, State: stateN1})
	require.Eventually(t, func() bool { return len(rec.Endpoints()) == 2 }, testTimeout, time.Millisecond)
	for range 3 { // heartbeats with digests
		c.set(web("b", "10.0.0.3")...)
		require.Eventually(t, func() bool { return current(server.Clients()) }, testTimeout, time.Millisecond)
		c.set(web("b", "10.0.0.4")...)
		require.Eventually(t, func() bool { return current(server.Clients()) }, testTimeout, time.Millisecond)
		server.awaitHeartbeat(t, "n1")
	}
	for key, e := range rec.Endpoints() {
		if key.Port.Service == name("a") {
			assert.Equal(t, "pod\ufffd", e.Details.Get().Hostname)
			assert.Equal(t, "n1\ufffd", e.Node)
		}
	}
	assert.Equal(t, 1, server.sent("reset"))
	assert.Zero(t, server.sent("compared"))
	assert.Zero(t, server.sent("resumed"))
}
