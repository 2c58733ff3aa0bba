package brain

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"

	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A node that restarts without a brain applies what it kept, and a brain that comes back knows it by its digest:
// nothing is sent again, and the sink is not called.
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
	stop() // it writes the file
	server.stop()

	var again sink.Recorder
	follow(t, &again, opts)
	awaitState(t, c, stateN1, &again)
	again.TakeWaves()
	server = serve(t, Options{Source: c}, target)
	server.awaitClients(t, func(all []ClientStatus) bool { return len(all) == 1 && all[0].BehindSince.IsZero() })
	assert.EqualValues(t, 1, testutil.ToFloat64(server.metrics.batches.WithLabelValues("resumed")))
	assert.Zero(t, testutil.ToFloat64(server.metrics.batches.WithLabelValues("reset")))
	assert.Empty(t, again.TakeWaves())
}
