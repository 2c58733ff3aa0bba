package random

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
)

// randomScript returns the script of a random test.
func randomScript(seed uint64, f backend.Factory, waves int) (Script, [][]Trial) {
	g := NewGenerator(seed, f)
	sc := Script{Setup: g.Setup()}
	var flows [][]Trial
	var services []cluster.Service
	for range waves {
		st := g.Next(services)
		flows = append(flows, g.TrialsOf(st.Services, services, TrialsPerWave))
		services = st.Services
		sc.Steps = append(sc.Steps, st)
	}
	return sc, flows
}

func TestTheSameSeedMakesTheSameScript(t *testing.T) {
	one, oneFlows := randomScript(7, backend.Factory{}, 30)
	again, againFlows := randomScript(7, backend.Factory{}, 30)
	assert.Equal(t, one, again)
	assert.Equal(t, oneFlows, againFlows)
	other, _ := randomScript(8, backend.Factory{}, 30)
	assert.NotEqual(t, one, other)
}

func TestRandomStatesMakeSenseToTheOracle(t *testing.T) {
	verdicts := map[string]int{}
	for seed := range uint64(40) {
		sc, flows := randomScript(seed, backend.Factory{}, 25)
		for i, st := range sc.Steps {
			families := model.Families()
			o, err := newState(t, sc.Setup, families[:], st.Services).Oracle(sc.Setup.OracleConfig(families[:]))
			require.NoError(t, err, "seed %d, wave %d", seed, i+1)
			for _, tr := range flows[i] {
				for _, a := range tr.Attempts(families[:], []model.Protocol{model.TCP, model.UDP, model.SCTP}) {
					out, err := o.Expect(a.Flow)
					require.NoError(t, err)
					verdicts[out.Verdict.String()]++
				}
			}
		}
	}
	for _, v := range []string{"deliver", "reject", "drop", "not ours"} {
		assert.Greater(t, verdicts[v], 500, "random traffic leads to every verdict: %v", verdicts)
	}
}

func TestRandomStatesKeepToWhatTheBackendDoes(t *testing.T) {
	f := backend.Factory{Lacks: []backend.Feature{backend.SCTP, backend.IPv6, backend.SourceRanges,
		backend.SessionAffinity, backend.NodePortAddresses},
		Waives: []string{backend.BridgeCase, backend.InterfaceCase}}
	for seed := range uint64(40) {
		sc, flows := randomScript(seed, f, 25)
		assert.NotContains(t, []cluster.Detector{cluster.ByBridge, cluster.ByInterface}, sc.Setup.Detector)
		assert.Equal(t, cluster.OnAllAddresses, sc.Setup.NodePorts)
		for i, st := range sc.Steps {
			for _, s := range st.Services {
				assert.Empty(t, s.Ranges)
				assert.Zero(t, s.Affinity)
				for _, p := range s.Ports {
					assert.NotEqual(t, model.SCTP, p.Protocol)
				}
			}
			for _, tr := range flows[i] {
				assert.Equal(t, model.IPv4, tr.family)
			}
		}
	}
}

// After random states a backend has the same state as a new one that gets only the last of them.
func TestBackendsAreToldWhatChanges(t *testing.T) {
	families := model.Families()
	for seed := range uint64(20) {
		sc, _ := randomScript(seed, backend.Factory{}, 25)
		c, err := cluster.New(t.Context(), sc.Setup, families[:], true)
		require.NoError(t, err)
		var recorder sink.Recorder
		for i, st := range sc.Steps {
			objects, err := cluster.Objects(st.Services, families[:])
			require.NoError(t, err)
			now, err := c.Put(objects, &recorder)
			require.NoError(t, err)
			require.NoError(t, recorder.Sync(t.Context()))
			require.Equal(t, newState(t, sc.Setup, families[:], st.Services), now, "seed %d, wave %d", seed, i+1)
			require.Equal(t, now, cluster.State{Node: recorder.Node(), Services: recorder.Services(),
				Endpoints: recorder.Endpoints()})

			var again sink.Recorder
			_, err = c.Put(objects, &again)
			require.NoError(t, err)
			require.NoError(t, again.Sync(t.Context()))
			require.Equal(t, []string{"Sync"}, again.TakeLines(), "a state that does not change is not told again")
		}
		assert.Empty(t, recorder.Violations(), "seed %d", seed)
		assert.Empty(t, recorder.BrokenInvariants(), "seed %d", seed)
	}
}

// newState returns the state of a new backend with these services.
func newState(t *testing.T, set cluster.Setup, families []model.Family, services []cluster.Service) cluster.State {
	c, err := cluster.New(t.Context(), set, families, true)
	require.NoError(t, err)
	objects, err := cluster.Objects(services, cluster.DualStack())
	require.NoError(t, err)
	st, err := c.Put(objects, sink.Tee())
	require.NoError(t, err)
	return st
}
