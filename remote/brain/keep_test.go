package brain

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A node that restarts without a brain applies its saved state. A brain that comes back recognises the state by its
// digest: nothing is sent again, and the sink is not called.
func TestAKeptStateResumes(t *testing.T) {
	c := newCluster(baseObjects()...)
	c.set(web("a", "10.244.1.1", "10.244.2.1")...)
	target := socket(t)
	opts := remote.Options{Targets: []string{target}, State: stateN1,
		Keep: &remote.Keep{File: filepath.Join(t.TempDir(), "state"), After: time.Millisecond}}
	server := serve(t, Options{Source: c}, target)
	var before sink.Recorder
	stop := follow(t, &before, opts)
	awaitState(t, c, stateN1, &before)
	server.awaitClients(t, current)
	stop() // it writes the file
	server.stop()

	var again sink.Recorder
	follow(t, &again, opts)
	_, err := again.NextWave(t.Context())
	require.NoError(t, err)
	assert.Empty(t, difference(c.want(t, stateN1), &again))
	server = serve(t, Options{Source: c}, target)
	server.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 1 && all[0].BehindSince.IsZero() })
	assert.EqualValues(t, 1, testutil.ToFloat64(server.metrics.batches.WithLabelValues("resumed")))
	assert.Zero(t, testutil.ToFloat64(server.metrics.batches.WithLabelValues("reset")))
	assert.Empty(t, again.TakeWaves())
}

// keptAt returns the options of a node that has received and saved the state of a resourceVersion, and has ended.
func keptAt(t *testing.T, version, address string) (opts remote.Options, at *cluster) {
	c := clusterAt(version, address)
	opts = remote.Options{Targets: []string{socket(t)}, State: stateN1,
		Keep: &remote.Keep{File: filepath.Join(t.TempDir(), "state"), After: time.Millisecond}}
	server := serve(t, Options{Source: c}, opts.Targets[0])
	var rec sink.Recorder
	stop := follow(t, &rec, opts)
	awaitState(t, c, stateN1, &rec)
	server.awaitClients(t, current)
	stop() // it writes the file
	server.stop()
	return opts, c
}

// A node does not apply an older state from a brain that lags, also if the node has restarted meanwhile.
func TestAKeptStateDoesNotGoBack(t *testing.T) {
	for name, after := range map[string]time.Duration{"that is used": time.Millisecond, "that is not used": time.Hour} {
		t.Run(name, func(t *testing.T) {
			opts, kept := keptAt(t, "20", "10.0.0.2")
			opts.FreshnessWait, opts.Keep.After = time.Hour, after
			second := clusterAt("10", "10.0.0.1")
			b := quick(t, second)
			opts.Targets = []string{b.target}
			var rec sink.Recorder
			follow(t, &rec, opts)
			if after < time.Hour {
				_, err := rec.NextWave(t.Context())
				require.NoError(t, err)
				assert.Empty(t, difference(kept.want(t, stateN1), &rec))
			}
			require.Eventually(t, func() bool { return b.sent("behind") >= 1 }, testTimeout, time.Millisecond)
			assert.Empty(t, rec.TakeWaves())
			second.set(webAt("21", "10.0.0.3")...)
			awaitState(t, second, stateN1, &rec)
		})
	}
}

// After the wait the node takes the older state, and reports that.
func TestAKeptStateThatGoesBackSaysSo(t *testing.T) {
	opts, kept := keptAt(t, "20", "10.0.0.2")
	opts.FreshnessWait = 50 * time.Millisecond
	second := clusterAt("10", "10.0.0.1")
	b := quick(t, second)
	gate := newProxy(t, b.target)
	gate.Block()
	opts.Targets = []string{gate.target}
	var rec sink.Recorder
	proxy := health.New(0)
	run(t, kubeproxy.Options{Sink: &rec, Health: proxy}, opts)
	awaitState(t, kept, stateN1, &rec)
	assert.True(t, proxy.WentBack().IsZero())
	gate.Unblock()
	awaitState(t, second, stateN1, &rec)
	assert.Positive(t, b.sent("behind"))
	assert.False(t, proxy.WentBack().IsZero())
}
