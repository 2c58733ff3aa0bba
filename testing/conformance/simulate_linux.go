package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"slices"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
)

// Forward is a simulated dataplane. It says what happens to the first packet of a connection from a source port,
// according to what the backend has put into the simulation. NotOurs stands for a packet that is left alone.
type Forward func(f oracle.Flow, sourcePort uint16) oracle.Observation

// Simulate runs those cases of [Test] that need no packets against a backend whose dataplane is simulated, because the
// real one is not available. The cases and the oracle are the same; it makes no network and needs no root.
// Factory.Lacks may also name what only simulations may lack.
func Simulate(t *testing.T, f Factory, forward Forward) {
	t.Helper()
	newSimulation(t, f, forward).runCases(t, simulatedCases())
}

// SimulateRandom is [Random] for such a backend.
func SimulateRandom(t *testing.T, f Factory, forward Forward, seed uint64, n int) {
	t.Helper()
	if err := newSimulation(t, f, forward).random(t.Context(), seed, n); err != nil {
		t.Errorf("random test with seed %d and %d states\n\n%v", seed, n, err)
	}
}

// simulatedCases are those that need neither network namespaces nor established connections.
func simulatedCases() []testCase {
	var list []testCase
	for _, c := range trafficCases() {
		list = append(list, c.testCase())
	}
	for _, c := range slices.Concat(ownerCases(), lifecycleCases()) {
		if c.inSimulation {
			list = append(list, c)
		}
	}
	return slices.Concat(list, balanceCases())
}

func newSimulation(t *testing.T, f Factory, forward Forward) *session {
	t.Helper()
	s := &session{n: &network{families: f.families(), forward: forward}, factory: f, patience: defaultPatience,
		id: rand.Text(), waived: &waivers{}}
	t.Cleanup(func() {
		if err := s.cleanup(context.Background()); err != nil {
			t.Errorf("at the end: %v", err)
		}
		s.close()
	})
	return s
}

// simulate asks the simulation about a flow, from another port each time.
func (n *network) simulate(f attempt) seen {
	port := uint16(1024 + n.sourcePort.Add(1)%60000)
	return seen{Observation: n.forward(f.Flow, port), detail: "in the simulation"}
}

// claimed returns what must happen to a flow, given the features that the backend claims.
func (s *session) claimed(o *oracle.Oracle, out oracle.Outcome, inForce state) (oracle.Outcome, error) {
	if s.factory.lacks(SourceRoutes) && goesBySource(inForce, out) {
		outside := out.Flow
		outside.From, outside.Source = oracle.External, placeNamed(client).addr(out.Flow.Family())
		other, err := o.Expect(outside)
		if err != nil {
			return out, err
		}
		other.Flow = out.Flow
		out = other
		s.waived.add(SourceRoutes)
	}
	before := len(out.Endpoints)
	if s.factory.lacks(HostEndpoints) {
		out.Endpoints = slices.DeleteFunc(slices.Clone(out.Endpoints), func(d oracle.Destination) bool {
			return slices.Contains(inForce.node.IPs, d.Endpoint.Addr())
		})
		if len(out.Endpoints) < before {
			s.waived.add(HostEndpoints)
		}
	}
	if before > 0 && len(out.Endpoints) == 0 {
		out.Verdict = oracle.Reject
	}
	if s.factory.lacks(TargetPorts) {
		if port, several := mostFrequentPort(out.Endpoints); several {
			out.Endpoints = slices.DeleteFunc(slices.Clone(out.Endpoints), func(d oracle.Destination) bool {
				return d.Endpoint.Port() != port
			})
			s.waived.add(TargetPorts)
		}
	}
	return out, nil
}

// goesBySource reports whether what happens to a flow depends on its source (S27).
func goesBySource(st state, out oracle.Outcome) bool {
	svc := st.services[out.Port.Service]
	if svc == nil || slices.Contains(svc.ClusterIPs, out.Flow.Destination.Addr()) {
		return false
	}
	routes := svc.Port(out.Port.Port, out.Port.Protocol).Routes(out.Flow.Family())
	return out.Route.Endpoints == model.ClusterSet && routes.External.Endpoints == model.LocalSet
}

// mostFrequentPort returns the port that most endpoints have, of several the lowest, and whether there are others.
func mostFrequentPort(list []oracle.Destination) (port uint16, several bool) {
	counts := map[uint16]int{}
	for _, d := range list {
		counts[d.Endpoint.Port()]++
	}
	if len(counts) == 0 {
		return 0, false
	}
	return slices.MaxFunc(slices.Collect(maps.Keys(counts)), func(a, b uint16) int {
		return cmp.Or(cmp.Compare(counts[a], counts[b]), cmp.Compare(b, a))
	}), len(counts) > 1
}
