package testbed

import (
	"crypto/rand"
	"slices"
	"sync/atomic"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink/oracle"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/backend"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/cluster"
	"sigs.k8s.io/kube-proxy-lib/testing/conformance/internal/network"
)

// NewSimulated returns a testbed without a network: forward is called with each connection and its source port.
func NewSimulated(f backend.Factory, forward func(oracle.Flow, uint16) oracle.Observation) *Testbed {
	var ports atomic.Uint32
	return &Testbed{Factory: f, Timeouts: DefaultTimeouts(), id: rand.Text(), Waived: &waivers{},
		Try: func(fl network.Attempt, _ network.Timeouts) network.Seen {
			port := uint16(1024 + ports.Add(1)%60000) // another one for each connection
			return network.Seen{Observation: forward(fl.Flow, port), Detail: "in the simulation"}
		}}
}

// simulated returns the required outcome of a flow in a simulation, given the backend's features.
func (b *Testbed) simulated(o *oracle.Oracle, out oracle.Outcome, applied cluster.State) (oracle.Outcome, error) {
	if !b.Factory.LacksFeature(backend.Routes) {
		return out, nil
	}
	if goesBySource(applied, out) {
		outside := out.Flow
		outside.From, outside.Source = oracle.External, network.HostNamed(network.Client).Addr(out.Flow.Family())
		other, err := o.Expect(outside)
		if err != nil {
			return out, err
		}
		other.Flow = out.Flow
		out = other
		b.Waived.add(string(backend.Routes))
	}
	before := len(out.Endpoints)
	leave := func(unserved func(oracle.Destination) bool) {
		left := slices.DeleteFunc(slices.Clone(out.Endpoints), unserved)
		if len(left) < len(out.Endpoints) {
			b.Waived.add(string(backend.Routes))
		}
		out.Endpoints = left
	}
	leave(func(d oracle.Destination) bool { return slices.Contains(applied.Node.IPs, d.Endpoint.Addr()) })
	if before > 0 && len(out.Endpoints) == 0 {
		out.Verdict = oracle.Reject
	}
	port := mostFrequentPort(out.Endpoints)
	leave(func(d oracle.Destination) bool { return d.Endpoint.Port() != port })
	return out, nil
}

// goesBySource reports whether the outcome of a flow depends on its source (S27).
func goesBySource(applied cluster.State, out oracle.Outcome) bool {
	svc := applied.Services[out.Port.Service]
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
