package oracle

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// snapshot returns the state as a backend sees it.
func snapshot(t *testing.T, state State, more ...*model.Endpoint) (snapshot *sink.Snapshot) {
	full := sink.NewFullState(func(_ context.Context, s *sink.Snapshot) error {
		snapshot = s
		return nil
	})
	if state.Node != nil {
		full.SetNode(state.Node)
	}
	for _, s := range state.Services {
		full.SetService(s)
	}
	for _, ep := range append(more, state.Endpoints...) {
		full.SetEndpoint(ep)
	}
	require.NoError(t, full.Sync(t.Context()))
	return snapshot
}

func TestASnapshotIsAnsweredForLikeItsState(t *testing.T) {
	f := newFixture()
	f.policy.External = model.TrafficPolicyLocal
	f.service.SessionAffinityTimeout = 10
	ranges("192.0.2.0/24")(f)
	f.setEndpoints(named(local(localPod, cluster|locally), "web-1", "n1"),
		named(remote(remotePod, cluster), "web-2", "n2"))
	byState := f.oracle(t)
	stray := named(remote("10.244.9.9", cluster), "stray", "n2")
	stray.Port.Port = "no such port"
	bySnapshot, err := OfSnapshot(snapshot(t, f.state(), stray), f.config)
	require.NoError(t, err)

	flows := comparison{Oracle: byState, rng: rand.New(rand.NewPCG(1, 0))}
	flows.collect()
	verdicts := map[Verdict]bool{}
	for range 2000 {
		flow := flows.flow()
		want, err := byState.Expect(flow)
		require.NoError(t, err)
		got, err := bySnapshot.Expect(flow)
		require.NoError(t, err)
		require.Equal(t, want, got)
		verdicts[want.Verdict] = true
	}
	assert.GreaterOrEqual(t, len(verdicts), 3, "the flows were worth it")
	for _, question := range []string{"pod default/web-1 -> 10.96.0.10:80", "pod default/web-2 -> 203.0.113.10:80",
		"pod " + remotePod + " -> 10.96.0.10:80", "node -> 10.96.0.10:80", "pod default/unknown -> 10.96.0.10:80"} {
		want, wantErr := byState.Ask(question)
		got, err := bySnapshot.Ask(question)
		require.Equal(t, wantErr, err, question)
		require.Equal(t, want, got, question)
	}
}

func TestASnapshotWithoutANodeHasNoAnswers(t *testing.T) {
	_, err := OfSnapshot(snapshot(t, State{}), Config{})
	require.EqualError(t, err, "oracle: the state has no node")
}
