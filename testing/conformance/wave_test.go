package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

func TestWavesKeepToTheContractOfSinks(t *testing.T) {
	families := model.Families()
	for seed := range uint64(20) {
		sc, _ := randomScript(seed, Factory{}, 25)
		var told sink.Recorder
		now := newState(sc.setup.node(families[:]))
		for i, st := range sc.steps {
			next, err := buildState(sc.setup, families[:], st.services)
			require.NoError(t, err)
			tell(&told, now, next, i == 0)
			require.NoError(t, told.Sync(t.Context()))
			require.Equal(t, next.node, told.Node())
			require.Equal(t, next.services, told.Services())
			require.Equal(t, next.endpoints, told.Endpoints())

			var again sink.Recorder
			tell(&again, next, next, false)
			require.NoError(t, again.Sync(t.Context()))
			require.Equal(t, []string{"Sync"}, again.TakeLines(), "a state that does not change is not told again")
			now = next
		}
		assert.Empty(t, told.Violations(), "seed %d", seed)
		assert.Empty(t, told.BrokenInvariants(), "seed %d", seed)
	}
}
