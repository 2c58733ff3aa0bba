package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/evidence"
)

// After random states a backend has the same state as a new one that gets only the last of them.
func TestBackendsAreToldWhatChanges(t *testing.T) {
	families := model.Families()
	for seed := range uint64(20) {
		sc, _ := randomScript(seed, Factory{}, 25)
		c, err := newCluster(t.Context(), sc.setup, families[:], true)
		require.NoError(t, err)
		var recorder sink.Recorder
		for i, st := range sc.steps {
			objects, err := objectsOf(st.services, families[:])
			require.NoError(t, err)
			now, err := c.put(objects, &recorder)
			require.NoError(t, err)
			require.NoError(t, recorder.Sync(t.Context()))
			require.Equal(t, stateOf(t, sc.setup, families[:], st.services), now, "seed %d, wave %d", seed, i+1)
			require.Equal(t, now, state{recorder.Node(), recorder.Services(), recorder.Endpoints()})

			var again sink.Recorder
			_, err = c.put(objects, &again)
			require.NoError(t, err)
			require.NoError(t, again.Sync(t.Context()))
			require.Equal(t, []string{"Sync"}, again.TakeLines(), "a state that does not change is not told again")
		}
		assert.Empty(t, recorder.Violations(), "seed %d", seed)
		assert.Empty(t, recorder.BrokenInvariants(), "seed %d", seed)
	}
}

func TestTablesThatContradictThemselves(t *testing.T) {
	for _, services := range [][]service{
		{{name: "a", slot: 1}, {name: "b", slot: 1}},
		{{name: "a", slot: 1}, {name: "a", slot: 2}},
	} {
		_, err := objectsOf(services, dualStack())
		assert.Error(t, err)
	}
}

// A program that lacks a family is tested in a cluster without it.
func TestObjectsHaveOnlyTheFamiliesOfTheCluster(t *testing.T) {
	both := service{name: "both", externalIP: true, vip: true, endpoints: at(localPod1, remotePod1)}
	six := service{name: "six", slot: 2, families: []model.Family{model.IPv6}, endpoints: at(localPod1)}
	objects, err := objectsOf([]service{both, six}, []model.Family{model.IPv4})
	require.NoError(t, err)
	text, err := evidence.Objects(objects)
	require.NoError(t, err)
	assert.Contains(t, text, "ipFamilyPolicy: SingleStack")
	for _, of6 := range []string{"IPv6", "fd00:", "2001:db8:", "six"} {
		assert.NotContains(t, text, of6)
	}
}
