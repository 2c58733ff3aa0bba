package conformance

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
)

// randomScript returns the script of a random test.
func randomScript(seed uint64, f Factory, waves int) (script, [][]traffic) {
	g := newGenerator(seed, f)
	sc := script{setup: g.setup()}
	var flows [][]traffic
	var services []service
	for range waves {
		st := g.next(services)
		flows = append(flows, g.trafficTo(st.services, services, flowsPerWave))
		services = st.services
		sc.steps = append(sc.steps, st)
	}
	return sc, flows
}

func TestTheSameSeedMakesTheSameScript(t *testing.T) {
	one, oneFlows := randomScript(7, Factory{}, 30)
	again, againFlows := randomScript(7, Factory{}, 30)
	assert.Equal(t, one, again)
	assert.Equal(t, oneFlows, againFlows)
	other, _ := randomScript(8, Factory{}, 30)
	assert.NotEqual(t, one, other)
}

func TestRandomStatesMakeSenseToTheOracle(t *testing.T) {
	verdicts := map[string]int{}
	for seed := range uint64(40) {
		sc, flows := randomScript(seed, Factory{}, 25)
		for i, st := range sc.steps {
			families := model.Families()
			o, err := stateOf(t, sc.setup, families[:], st.services).oracle(sc.setup.oracleConfig(families[:]))
			require.NoError(t, err, "seed %d, wave %d", seed, i+1)
			for _, tr := range flows[i] {
				expanded, err := step{services: []service{*tr.as}, traffic: []traffic{tr}}.flows(families[:],
					allProtocols)
				require.NoError(t, err)
				for _, e := range expanded {
					out, err := o.Expect(e.Flow)
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
	f := Factory{Lacks: []Feature{SCTP, IPv6, SourceRanges, SessionAffinity, NodePortAddresses},
		Waives: []string{bridgeCase, interfaceCase}}
	for seed := range uint64(40) {
		sc, flows := randomScript(seed, f, 25)
		assert.NotContains(t, []detector{byBridge, byInterface}, sc.setup.detector)
		assert.Equal(t, onAllAddresses, sc.setup.nodePorts)
		for i, st := range sc.steps {
			for _, s := range st.services {
				assert.Empty(t, s.ranges)
				assert.Zero(t, s.affinity)
				for _, p := range s.ports {
					assert.NotEqual(t, model.SCTP, p.protocol)
				}
			}
			for _, tr := range flows[i] {
				assert.Equal(t, model.IPv4, tr.only)
			}
		}
	}
}
