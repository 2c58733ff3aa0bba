package conformance

import (
	"crypto/rand"
	"slices"
	"sync/atomic"
	"testing"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// Forward is a simulated dataplane. It returns the result of the first packet of a connection from a source port, as
// the backend has programmed the simulation. NotOurs means that the packet is left alone.
type Forward func(f oracle.Flow, sourcePort uint16) oracle.Observation

// Simulate runs the cases of [Test] that need no real packets, against a backend whose dataplane is simulated because
// the real one is not available. The cases and the oracle are the same; it creates no network and needs no root.
// Factory.Lacks may also contain Routes, which only a simulation may lack.
func Simulate(t *testing.T, f Factory, forward Forward) {
	t.Helper()
	newSimulation(t, f, forward).runCases(t, simulatedCases())
}

// SimulateRandom is [Random] for such a backend.
func SimulateRandom(t *testing.T, f Factory, forward Forward, seed uint64, n int) {
	t.Helper()
	newSimulation(t, f, forward).runRandom(t, seed, n)
}

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

func newSimulation(t *testing.T, f Factory, forward Forward) *testbed {
	t.Helper()
	if err := f.check(); err != nil {
		t.Fatalf("conformance: %v", err)
	}
	var ports atomic.Uint32
	return endWith(t, &testbed{factory: f, timeouts: defaultTimeouts(), id: rand.Text(), waived: &waivers{},
		try: func(fl network.Attempt, _ network.Timeouts) network.Seen {
			port := uint16(1024 + ports.Add(1)%60000) // another one for each connection
			return network.Seen{Observation: forward(fl.Flow, port), Detail: "in the simulation"}
		}})
}

// simulated returns the required outcome of a flow in a simulation, given the backend's features.
func (b *testbed) simulated(o *oracle.Oracle, out oracle.Outcome, applied state) (oracle.Outcome, error) {
	if !b.factory.lacks(Routes) {
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
		b.waived.add(string(Routes))
	}
	before := len(out.Endpoints)
	leave := func(unserved func(oracle.Destination) bool) {
		left := slices.DeleteFunc(slices.Clone(out.Endpoints), unserved)
		if len(left) < len(out.Endpoints) {
			b.waived.add(string(Routes))
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

// goesBySource reports whether the outcome of a flow depends on its source (S27).
func goesBySource(applied state, out oracle.Outcome) bool {
	svc := applied.services[out.Port.Service]
	if svc == nil || slices.Contains(svc.ClusterIPs, out.Flow.Destination.Addr()) {
		return false
	}
	routes := *svc.Port(out.Port.Port, out.Port.Protocol).Routes.At(out.Flow.Family())
	return out.Route.Endpoints == model.ClusterSet && routes.External.Endpoints == model.LocalSet
}

// mostFrequentPort returns the port that most endpoints have, the lowest on a tie.
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
