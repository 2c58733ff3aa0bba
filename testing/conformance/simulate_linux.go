package conformance

import (
	"crypto/rand"
	"slices"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Forward is a simulated dataplane. It says what happens to the first packet of a connection from a source port,
// according to what the backend has put into the simulation. NotOurs stands for a packet that is left alone.
type Forward func(f oracle.Flow, sourcePort uint16) oracle.Observation

// Simulate runs those cases of [Test] that need no packets against a backend whose dataplane is simulated, because the
// real one is not available. The cases and the oracle are the same; it makes no network and needs no root.
// Factory.Lacks may also name Routes, what only simulations may lack.
func Simulate(t *testing.T, f Factory, forward Forward) {
	t.Helper()
	newSimulation(t, f, forward).runCases(t, simulatedCases())
}

// SimulateRandom is [Random] for such a backend.
func SimulateRandom(t *testing.T, f Factory, forward Forward, seed uint64, n int) {
	t.Helper()
	newSimulation(t, f, forward).runRandom(t, seed, n)
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
	if err := f.check(); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	var ports atomic.Uint32
	return endWith(t, &session{factory: f, patience: defaultPatience(), id: rand.Text(), waived: &waivers{},
		try: func(fl network.Attempt, _ network.Patience) network.Seen {
			port := uint16(1024 + ports.Add(1)%60000) // another one each time
			return network.Seen{Observation: forward(fl.Flow, port), Detail: "in the simulation"}
		}})
}

// simulated returns what must happen to a flow in a simulation, given what the backend claims.
func (s *session) simulated(o *oracle.Oracle, out oracle.Outcome, applied state) (oracle.Outcome, error) {
	if !s.factory.lacks(Routes) {
		return out, nil
	}
	if goesBySource(applied, out) {
		outside := out.Flow
		outside.From, outside.Source = oracle.External, network.PlaceNamed(client).Addr(out.Flow.Family())
		other, err := o.Expect(outside)
		if err != nil {
			return out, err
		}
		other.Flow = out.Flow
		out = other
		s.waived.add(string(Routes))
	}
	before := len(out.Endpoints)
	leave := func(unserved func(oracle.Destination) bool) {
		left := slices.DeleteFunc(slices.Clone(out.Endpoints), unserved)
		if len(left) < len(out.Endpoints) {
			s.waived.add(string(Routes))
		}
		out.Endpoints = left
	}
	leave(func(d oracle.Destination) bool { return slices.Contains(applied.node.IPs, d.Endpoint.Addr()) })
	if before > 0 && len(out.Endpoints) == 0 {
		out.Verdict = oracle.Reject
	}
	port := mostFrequentPort(out.Endpoints)
	leave(func(d oracle.Destination) bool { return d.Endpoint.Port() != port })
	return out, nil
}

// goesBySource reports whether what happens to a flow depends on its source (S27).
func goesBySource(applied state, out oracle.Outcome) bool {
	svc := applied.services[out.Port.Service]
	if svc == nil || slices.Contains(svc.ClusterIPs, out.Flow.Destination.Addr()) {
		return false
	}
	routes := svc.Port(out.Port.Port, out.Port.Protocol).Routes(out.Flow.Family())
	return out.Route.Endpoints == model.ClusterSet && routes.External.Endpoints == model.LocalSet
}

// mostFrequentPort returns the port that most endpoints have, of several the lowest.
func mostFrequentPort(list []oracle.Destination) (port uint16) {
	counts := map[uint16]int{}
	for _, d := range list {
		counts[d.Endpoint.Port()]++
	}
	for p, n := range counts {
		if n > counts[port] || n == counts[port] && p < port {
			port = p
		}
	}
	return port
}
