package cases

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

var allProtocols = []model.Protocol{model.TCP, model.UDP, model.SCTP}

// The cases' expectations agree with the oracle, so that neither can be changed alone.
func TestCasesAndOracleAgree(t *testing.T) {
	families := []model.Family{model.IPv4, model.IPv6}
	flows := 0
	for _, c := range trafficCases() {
		t.Run(c.name, func(t *testing.T) {
			assert.NotEmpty(t, c.rules, "a case names the rules that it is about")
			for i, st := range c.steps {
				require.Equal(t, i == 0, st.then == "", "each step but the first says what happens")
				state := stateOf(t, c.setup, families, st.services)
				o, err := state.Oracle(c.setup.OracleConfig(families))
				require.NoError(t, err)
				expected, err := st.flows(families, allProtocols)
				require.NoError(t, err)
				require.NotEmpty(t, expected)
				for _, e := range expected {
					out, err := o.Expect(e.Flow)
					require.NoError(t, err)
					assert.Equal(t, describeWant(e, e.want), describeOutcome(e, out), "%s %v, which is %s\n%v", st.then,
						e.Flow, e.About, out)
					flows++
				}
			}
		})
	}
	t.Logf("%d flows", flows)
}

// Every step of a case has traffic to try, whatever features a backend lacks.
func TestCasesTryTrafficWithEveryBackend(t *testing.T) {
	for _, lacks := range [][]backend.Feature{{}, {backend.IPv6}, {backend.IPv4}, {backend.SCTP},
		{backend.IPv6, backend.SCTP}, {backend.IPv4, backend.SCTP}} {
		f := backend.Factory{Lacks: lacks}
		protocols := allProtocols
		if f.LacksFeature(backend.SCTP) {
			protocols = protocols[:2]
		}
		for _, c := range trafficCases() {
			if slices.ContainsFunc(c.needs, f.LacksFeature) {
				continue
			}
			for _, st := range c.steps {
				flows, err := st.flows(f.Families(), protocols)
				require.NoError(t, err)
				assert.NotEmpty(t, flows, "%q, step %q, without %v", c.name, st.then, lacks)
			}
		}
	}
}

// stateOf returns the state of a new backend with these services.
func stateOf(t *testing.T, set setup, families []model.Family, services []service) cluster.State {
	c, err := cluster.New(t.Context(), set, families, true)
	require.NoError(t, err)
	objects, err := cluster.Objects(services, cluster.DualStack())
	require.NoError(t, err)
	st, err := c.Put(objects, sink.Tee())
	require.NoError(t, err)
	return st
}

func describeWant(e expectedFlow, w want) string {
	text := w.verdict.String()
	var targets []oracle.Destination
	for _, r := range w.reach {
		addr := network.HostNamed(r.at).Addr(e.Family())
		targets = append(targets,
			oracle.Destination{Endpoint: netip.AddrPortFrom(addr, r.target), SourceNAT: r.masqueraded})
	}
	return text + describeDestinations(targets)
}

func describeOutcome(e expectedFlow, out oracle.Outcome) string {
	return out.Verdict.String() + describeDestinations(out.Endpoints)
}

func describeDestinations(list []oracle.Destination) string {
	set := map[string]bool{}
	for _, d := range list {
		set[d.String()] = true
	}
	return fmt.Sprint(" ", set)
}
