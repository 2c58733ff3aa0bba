package brain

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/watch"
)

// laterServer is one that another node uses already. Heartbeats are of no help.
func laterServer(t *testing.T, c *cluster) *replica {
	t.Helper()
	b := serve(t, Options{Source: c, limits: limits{minInterval: -1, heartbeat: time.Hour}}, socket(t))
	resident := &sink.Recorder{}
	follow(t, resident, remote.Options{Targets: []string{b.target}, State: stateN1})
	awaitState(t, c, stateN1, resident)
	b.awaitClients(t, current)
	return b
}

// inOneRevision makes the changes of a, from one version to another, known at once.
func inOneRevision(c *cluster, version, address, nextVersion, nextAddress string) {
	var changes []watch.Change
	for _, o := range append(webAt(version, address), webAt(nextVersion, nextAddress)...) {
		changes = append(changes, watch.Change{Object: o})
	}
	c.change(changes...)
}

// Under constant change, no state of one server equals one of another. A node's mark says how new its state is, so the
// node is sent the services that have changed since, without a comparison.
func TestANodeThatChangesItsServerIsSentWhatChangedSince(t *testing.T) {
	first, second := clusterAt("20", "10.0.0.2"), clusterAt("10", "10.0.0.1")
	for _, c := range []*cluster{first, second} {
		c.set(at("9", web("b", "10.0.1.1")...)...)
	}
	b := laterServer(t, second)
	inOneRevision(second, "20", "10.0.0.2", "30", "10.0.0.3")
	f := failOver(t, time.Hour, first, b)
	lines := awaitState(t, second, stateN1, f.rec)
	assert.Equal(t, 1, b.sent("resumed_diff"))
	assert.Zero(t, b.sent("compared"))
	assert.NotContains(t, append(lines, f.rec.TakeLines()...), "SetService default/b")
}

// A mark is meaningless for another cluster, or one that was restored: that is noticed before the next change.
func TestAStateOfAnotherClusterIsNoticed(t *testing.T) {
	t.Parallel() // it waits until a client connects again
	first, second := clusterAt("20", "10.0.0.2"), clusterAt("10", "10.0.0.1")
	first.set(at("15", web("gone", "10.0.1.1")...)...)
	b := laterServer(t, second)
	inOneRevision(second, "21", "10.0.0.2", "30", "10.0.0.3")
	f := failOver(t, time.Hour, first, b)
	require.Eventually(t, func() bool { return b.sent("resumed_diff") == 1 }, testTimeout, time.Millisecond)
	second.set(webAt("31", "10.0.0.4")...)
	awaitState(t, second, stateN1, f.rec)
	assert.Equal(t, 2, b.sent("reset"), "the resident's first state, and this one")
}
