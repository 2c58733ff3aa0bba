package suite

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cases"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/testbed"
)

// forward is conformance.Forward.
type forward = func(oracle.Flow, uint16) oracle.Observation

// Simulate runs the cases that need no real packets, see conformance.Simulate.
func Simulate(t *testing.T, f backend.Factory, simulation forward) {
	t.Helper()
	runCases(t, newSimulation(t, f, simulation), cases.Simulated())
}

// SimulateRandom is [Random] for a backend whose dataplane is simulated.
func SimulateRandom(t *testing.T, f backend.Factory, simulation forward, seed uint64, n int) {
	t.Helper()
	runRandom(t, newSimulation(t, f, simulation), seed, n)
}

func newSimulation(t *testing.T, f backend.Factory, simulation forward) *testbed.Testbed {
	t.Helper()
	if err := cases.Check(f); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	return endWith(t, testbed.NewSimulated(f, simulation))
}
