package conformance_test

import (
	"testing"

	"sigs.k8s.io/kube-proxy-lib/testing/conformance"
)

func TestTheSimulationOfTheExamplePasses(t *testing.T) {
	s := &simulation{}
	conformance.Simulate(t, s.factory(), s.forward)
	conformance.SimulateRandom(t, s.factory(), s.forward, 1, 200)
}
