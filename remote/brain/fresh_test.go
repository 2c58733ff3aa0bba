package brain

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeproxy "sigs.k8s.io/kube-proxy-lib"
	"sigs.k8s.io/kube-proxy-lib/node/health"
	"sigs.k8s.io/kube-proxy-lib/remote"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// staleServer returns a server with one client, which leaves it when it exceeds a limit of l.
func staleServer(t *testing.T, l limits) (server *replica, registry *prometheus.Registry, client *health.Proxy) {
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	registry = prometheus.NewPedanticRegistry()
	l.heartbeat, l.minInterval = 20*time.Millisecond, -1
	server = serve(t, Options{Source: c, Metrics: registry, limits: l}, socket(t))
	rec, client := &sink.Recorder{}, health.New(0)
	run(t, kubeproxy.Options{Sink: rec, Health: client}, remote.Options{Targets: []string{server.target}, State: stateN1})
	awaitState(t, c, stateN1, rec)
	server.awaitClients(t, current)
	require.Eventually(t, func() bool { return server.Ready() == nil }, testTimeout, time.Millisecond)
	return server, registry, client
}

// gauge returns the value of a gauge.
func gauge(t *testing.T, r *prometheus.Registry, name string) float64 {
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.Metric[0].Gauge.GetValue()
		}
	}
	t.Fatal("there is no", name)
	return 0
}

// Clients leave a brain whose publisher hangs, although its streams are alive.
func TestABrainWhosePublisherHangsIsLeft(t *testing.T) {
	server, registry, client := staleServer(t, limits{maxPublish: 10 * time.Millisecond})
	server.work.Lock()
	signal(server.changed)
	require.Eventually(t, func() bool { return server.Ready() != nil && !client.DisconnectedSince().IsZero() },
		testTimeout, time.Millisecond)
	assert.ErrorContains(t, server.Ready(), "has been publishing a revision for")
	assert.Positive(t, gauge(t, registry, "kubeproxy_remote_publishing_seconds"))
	server.work.Unlock()
	require.Eventually(t, func() bool { return server.Ready() == nil && client.DisconnectedSince().IsZero() }, testTimeout,
		time.Millisecond)
	require.Eventually(t, func() bool { return gauge(t, registry, "kubeproxy_remote_publishing_seconds") == 0 },
		testTimeout, time.Millisecond)
}

// Clients also leave a brain that is cut off from its API server, unless its source does not report signs of life.
func TestABrainThatHearsNothingIsLeft(t *testing.T) {
	server, registry, client := staleServer(t, limits{maxSilence: 10 * time.Millisecond})
	assert.Zero(t, gauge(t, registry, "kubeproxy_remote_watch_age_seconds"), "it is not known")
	heard := func(kind metav1.Object, version string) { serverHandler{server.Server}.Heard(kind, version) }
	server.heard.Heard(&discoveryv1.EndpointSlice{}, "1", time.Now().Add(-time.Minute))
	require.NoError(t, server.Ready(), "without bookmarks a watch may be quiet")
	serverHandler{server.Server}.Bookmarks(&discoveryv1.EndpointSlice{})
	require.Eventually(t, func() bool { return !client.DisconnectedSince().IsZero() }, testTimeout, time.Millisecond)
	assert.ErrorContains(t, server.Ready(), "the API server has said nothing of kind EndpointSlice for")
	serverHandler{server.Server}.Bookmarks(&corev1.Service{})
	heard(&corev1.Service{}, "1")
	assert.Error(t, server.Ready(), "the other watch still hangs")
	assert.Positive(t, gauge(t, registry, "kubeproxy_remote_watch_age_seconds"))
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				heard(&discoveryv1.EndpointSlice{}, "1")
				heard(&corev1.Service{}, "1")
			}
		}
	}()
	require.Eventually(t, func() bool { return server.Ready() == nil && client.DisconnectedSince().IsZero() }, testTimeout,
		time.Millisecond)
}
