package brain

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// observed returns the number of a histogram's observations, and their sum.
func observed(t *testing.T, h prometheus.Collector, name string) (count int, sum time.Duration) {
	t.Helper()
	registry := prometheus.NewRegistry()
	require.NoError(t, registry.Register(h))
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == metricPrefix+name {
			x := f.GetMetric()[0].GetHistogram()
			return int(x.GetSampleCount()), time.Duration(x.GetSampleSum() * float64(time.Second))
		}
	}
	require.Fail(t, "there is no "+name)
	return 0, 0
}

// The latency of a delivery begins when the server sees the first change in it, even if the delivery waits for the
// acknowledgement of another one. The first state of a client is not a delivery.
func TestTheLatencyOfADelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, err := New(quiet(t), Options{Source: newCluster()})
		require.NoError(t, err)
		s := &client{server: &server.common, ctx: t.Context(), news: true}
		second := func() { time.Sleep(time.Second) }
		deliver := func() {
			require.True(t, s.begin())
			s.sending(nodeView{revision: s.sent.revision + 1})
			require.False(t, s.finish(nil))
		}
		acknowledge := func() {
			_, err := s.take(&remotev1.Request{Ack: &remotev1.Ack{Revision: s.sent.revision}})
			require.NoError(t, err)
		}
		want := func(count int, sum time.Duration) {
			t.Helper()
			n, total := observed(t, server.metrics.delivery, "delivery_duration_seconds")
			assert.Equal(t, count, n)
			assert.InDelta(t, sum, total, float64(time.Millisecond))
		}
		deliver()
		second()
		acknowledge()
		want(0, 0)

		first := time.Now()
		second()
		s.announce(first)
		deliver()
		second()
		s.announce(time.Now()) // while the first is under way
		second()
		s.announce(time.Now())
		acknowledge()
		want(1, 3*time.Second)
		second()
		deliver()
		acknowledge()
		want(2, (3+2)*time.Second)
	})
}

func TestMetricsShowWhatTheServerHolds(t *testing.T) {
	c := newCluster(append(append(baseObjects(), naming("a", "b")), web("a", "10.0.0.1")...)...)
	registry := prometheus.NewPedanticRegistry()
	server := serve(t, Options{Source: c, Metrics: registry, limits: limits{minInterval: -1, maxClients: 2}}, socket(t))
	for _, node := range []string{"n1", "n2"} {
		rec, state := &sink.Recorder{}, localstate.Options{NodeName: node}
		follow(t, rec, remote.Options{Targets: []string{server.target}, State: state})
		awaitState(t, c, state, rec)
	}
	server.awaitClients(t, upToDate(2))
	c.set(web("a", "10.0.0.2")...)
	require.Eventually(t, func() bool {
		n, _ := observed(t, server.metrics.delivery, "delivery_duration_seconds")
		return n == 2
	}, testTimeout, time.Millisecond)
	n, _ := observed(t, server.metrics.publish, "publish_duration_seconds")
	assert.Positive(t, n)
	_, err := rawStream(t, server.target, &remotev1.Hello{Node: "n3"}).Recv()
	require.Error(t, err)

	server.slots <- struct{}{} // one has a slot, two wait
	for _, node := range []string{"x", "y", "z"} {
		require.True(t, server.slotUsers.add(principal{node: node}, maxSlotUsers))
	}
	kept := 0
	server.mu.Lock()
	for _, class := range server.classes {
		kept += class.kept
	}
	server.mu.Unlock()
	assert.Positive(t, kept)
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		values[strings.TrimPrefix(f.GetName(), metricPrefix)] = f.GetMetric()[0].GetGauge().GetValue()
	}
	assert.EqualValues(t, 2, values["classes"])
	assert.EqualValues(t, kept, values["kept_bytes"])
	assert.EqualValues(t, 2, values["clients_waiting"])
	assert.EqualValues(t, 1, testutil.ToFloat64(server.metrics.refused.WithLabelValues("clients")))
}
