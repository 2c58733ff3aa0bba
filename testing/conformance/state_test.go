package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// A backend that lives through random states is told what a new one is told in the last of them.
func TestBackendsAreToldWhatChanges(t *testing.T) {
	families := model.Families()
	for seed := range uint64(20) {
		sc, _ := randomScript(seed, Factory{}, 25)
		c, err := newCluster(t.Context(), sc.setup, families[:])
		require.NoError(t, err)
		var told sink.Recorder
		for i, st := range sc.steps {
			objects, err := objectsOf(st.services)
			require.NoError(t, err)
			now, err := c.put(objects, &told)
			require.NoError(t, err)
			require.NoError(t, told.Sync(t.Context()))
			require.Equal(t, stateOf(t, sc.setup, families[:], st.services), now, "seed %d, wave %d", seed, i+1)
			require.Equal(t, now, state{told.Node(), told.Services(), told.Endpoints()})

			var again sink.Recorder
			_, err = c.put(objects, &again)
			require.NoError(t, err)
			require.NoError(t, again.Sync(t.Context()))
			require.Equal(t, []string{"Sync"}, again.TakeLines(), "a state that does not change is not told again")
		}
		assert.Empty(t, told.Violations(), "seed %d", seed)
		assert.Empty(t, told.BrokenInvariants(), "seed %d", seed)
	}
}

func TestTablesThatContradictThemselves(t *testing.T) {
	for _, services := range [][]service{
		{{name: "a", slot: 1}, {name: "b", slot: 1}},
		{{name: "a", slot: 1}, {name: "a", slot: 2}},
	} {
		_, err := objectsOf(services)
		assert.Error(t, err)
	}
}
