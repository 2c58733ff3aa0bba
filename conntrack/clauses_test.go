package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/model"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// flow of a clause: to a host and port, on to a target, or not rewritten if it has none.
type clauseFlow struct {
	to      int
	port    uint16
	target  int
	tport   uint16 // default 5353
	deleted bool
}

// clause is one thing that S40 and S41 say. The flows are put into the table between the two states.
type clause struct {
	name    string
	before  []spec
	restart bool // before never was: the flows are from an earlier process
	after   []spec
	flows   []clauseFlow
}

var all = spec{external: externalIP, lb: loadBalancer, nodePort: 30053}

// with returns the service with endpoints.
func (s spec) with(endpoints ...endpoint) spec {
	s.endpoints = endpoints
	return s
}

func clauses() []clause {
	// A flow to each address of the service "all", on to a host.
	toAll := func(target int, deleted bool) []clauseFlow {
		return []clauseFlow{
			{to: clusterIP, port: 53, target: target, deleted: deleted},
			{to: externalIP, port: 53, target: target, deleted: deleted},
			{to: loadBalancer, port: 53, target: target, deleted: deleted},
			{to: nodeIP, port: 30053, target: target, deleted: deleted},
			// Any address, but what is not rewritten and goes elsewhere passes by.
			{to: otherIP, port: 30053, target: target, deleted: deleted && target != 0},
		}
	}
	both := []endpoint{{host: 1}, {host: 2}}
	return []clause{
		{
			name:   "flows to an endpoint that went are deleted, others are not",
			before: []spec{all.with(both...)}, after: []spec{all.with(endpoint{host: 2})},
			flows: slices.Concat(toAll(1, true), toAll(2, false)),
		}, {
			name:   "flows to an endpoint that no longer serves are deleted",
			before: []spec{all.with(both...)}, after: []spec{
				all.with(endpoint{host: 1, notServing: true, noSet: true}, endpoint{host: 2})},
			flows: slices.Concat(toAll(1, true), toAll(2, false)),
		}, {
			name:   "flows to an endpoint that serves while it terminates go on, though it is in no set",
			before: []spec{all.with(both...)}, after: []spec{
				all.with(endpoint{host: 1, goes: true, noSet: true}, endpoint{host: 2}, endpoint{host: 3})},
			flows: slices.Concat(toAll(1, false), toAll(2, false)),
		}, {
			name:   "flows to an endpoint that new flows are sent to go on, though it does not serve",
			before: []spec{all.with(both...)}, after: []spec{
				all.with(endpoint{host: 1, notServing: true, ready: true}, endpoint{host: 3})},
			flows: slices.Concat(toAll(1, false), toAll(2, true)),
		}, {
			name:   "an endpoint that changes only its port is another one",
			before: []spec{all.with(endpoint{host: 1})}, after: []spec{all.with(endpoint{host: 1, port: 5354})},
			flows: []clauseFlow{{to: clusterIP, port: 53, target: 1, deleted: true},
				{to: clusterIP, port: 53, target: 1, tport: 5354}},
		}, {
			name:   "a flow to a service that is not rewritten is deleted when endpoints come",
			before: []spec{all}, after: []spec{all.with(both...)},
			flows: toAll(0, true),
		}, {
			name:   "a flow to a service that is not rewritten is deleted when the service comes",
			before: nil, after: []spec{all.with(both...)},
			flows: toAll(0, true),
		}, {
			name:   "a service without endpoints has no flows",
			before: []spec{all.with(both...)}, after: []spec{all},
			flows: slices.Concat(toAll(1, true), toAll(2, true)),
		}, {
			name:    "a service without endpoints leaves alone what passes by to its node port's number",
			restart: true, after: []spec{all},
			flows: slices.Concat(toAll(1, true), toAll(0, true)),
		}, {
			name:   "a service without serving endpoints has no flows",
			before: []spec{all.with(both...)}, after: []spec{
				all.with(endpoint{host: 1, notServing: true, noSet: true})},
			flows: slices.Concat(toAll(1, true), toAll(2, true)),
		}, {
			name:   "a deleted service has no flows",
			before: []spec{all.with(both...)}, after: nil,
			flows: slices.Concat(toAll(1, true), toAll(2, true)),
		}, {
			name:   "what is not rewritten is left alone where a service was",
			before: []spec{all.with(both...)}, after: nil,
			flows: toAll(0, false),
		}, {
			name:   "a service that loses its external addresses has no flows there",
			before: []spec{all.with(both...)}, after: []spec{spec{}.with(both...)},
			flows: []clauseFlow{
				{to: clusterIP, port: 53, target: 1},
				{to: externalIP, port: 53, target: 1, deleted: true},
				{to: loadBalancer, port: 53, target: 1, deleted: true},
				{to: nodeIP, port: 30053, target: 1, deleted: true},
			},
		}, {
			name:   "a service that changes its port has no flows at the old one",
			before: []spec{all.with(both...)}, after: []spec{{port: 54, endpoints: both}},
			flows: []clauseFlow{{to: clusterIP, port: 53, target: 1, deleted: true},
				{to: clusterIP, port: 54, target: 1}},
		}, {
			name:   "a service that gives up UDP has no flows",
			before: []spec{spec{}.with(both...)}, after: []spec{{protocol: model.TCP}},
			flows: []clauseFlow{{to: clusterIP, port: 53, target: 1, deleted: true}, {to: clusterIP, port: 53}},
		}, {
			name:   "an address that moves to another service takes the flows along only to shared endpoints",
			before: []spec{spec{name: "a", ip: otherIP, external: externalIP}.with(both...)},
			after: []spec{spec{name: "b", external: externalIP}.with(endpoint{host: 2}),
				spec{name: "a", ip: otherIP}.with(both...)},
			flows: []clauseFlow{
				{to: externalIP, port: 53, target: 1, deleted: true},
				{to: externalIP, port: 53, target: 2},
				{to: otherIP, port: 53, target: 1},
			},
		}, {
			name:   "of two services that claim one address either may serve a flow",
			before: nil,
			after: []spec{spec{name: "a", external: externalIP}.with(endpoint{host: 1}),
				spec{name: "b", ip: otherIP, external: externalIP}.with(endpoint{host: 2})},
			flows: []clauseFlow{
				{to: externalIP, port: 53, target: 1}, {to: externalIP, port: 53, target: 2},
				{to: externalIP, port: 53, target: 3, deleted: true},
			},
		}, {
			name:   "an address is a service's before its port is anybody's node port",
			before: nil,
			after: []spec{spec{name: "a", port: 30053}.with(endpoint{host: 1}),
				spec{name: "b", ip: otherIP, nodePort: 30053}.with(endpoint{host: 2})},
			flows: []clauseFlow{
				{to: clusterIP, port: 30053, target: 1}, {to: clusterIP, port: 30053, target: 2, deleted: true},
				{to: nodeIP, port: 30053, target: 2}, {to: nodeIP, port: 30053, target: 1, deleted: true},
			},
		}, {
			name:   "an external IP that is an address of the node has a flow of the node port with its number as well",
			before: nil,
			after: []spec{spec{name: "a", external: nodeIP, port: 30053}.with(endpoint{host: 1}),
				spec{name: "b", ip: otherIP, nodePort: 30053}.with(endpoint{host: 2})},
			flows: []clauseFlow{
				{to: nodeIP, port: 30053, target: 1}, {to: nodeIP, port: 30053, target: 2},
				{to: nodeIP, port: 30053, target: 3, deleted: true}, {to: nodeIP, port: 30053, deleted: true},
			},
		}, {
			name: "an external IP that goes leaves a flow to the node port with its number",
			before: []spec{spec{name: "a", external: nodeIP, port: 30053}.with(endpoint{host: 1}),
				spec{name: "b", ip: otherIP, nodePort: 30053}.with(endpoint{host: 2})},
			after: []spec{spec{name: "b", ip: otherIP, nodePort: 30053}.with(endpoint{host: 2})},
			flows: []clauseFlow{
				{to: nodeIP, port: 30053, target: 1, deleted: true}, {to: nodeIP, port: 30053, target: 2},
				{to: nodeIP, port: 30053, deleted: true},
			},
		}, {
			name:    "after a restart the first complete state is compared with the whole table",
			restart: true, after: []spec{all.with(endpoint{host: 2})},
			flows: slices.Concat(toAll(1, true), toAll(2, false), toAll(0, true)),
		}, {
			name:   "flows that are no service's are left alone",
			before: []spec{all.with(both...)}, after: []spec{all.with(endpoint{host: 2})},
			flows: []clauseFlow{
				{to: otherIP, port: 53, target: 1}, {to: otherIP, port: 53}, {to: clusterIP, port: 54, target: 1},
				{to: 1, port: 5353}, {to: nodeIP, port: 30054, target: 1},
			},
		},
	}
}

// testClauses checks all the clauses, in both families, in a table.
func testClauses(t *testing.T, newTable func(t *testing.T) testTable) {
	for _, c := range clauses() {
		for _, f := range model.Families() {
			t.Run(fmt.Sprintf("%s/%v", c.name, f), func(t *testing.T) {
				t.Parallel() // to make a network namespace is to wait for the kernel
				table := newTable(t)
				entries := func(specs []spec) (list []*sink.ServiceEntry) {
					for _, s := range specs {
						list = append(list, s.entry(t, f))
					}
					return list
				}
				before, after := entries(c.before), entries(c.after)
				r := wrap(t, table)
				if !c.restart {
					describe(r, nil, before)
					require.NoError(t, r.Sync(t.Context()))
					r.Wait()
				}
				var want []Flow
				for i, flow := range c.flows {
					to, target := netip.AddrPortFrom(host(f, flow.to), flow.port), netip.AddrPort{}
					if flow.target != 0 {
						if flow.tport == 0 {
							flow.tport = 5353
						}
						target = netip.AddrPortFrom(host(f, flow.target), flow.tport)
					}
					added := flowTo(f, uint16(4000+i), to, target)
					table.Add(added)
					if !flow.deleted {
						want = append(want, added)
					}
				}
				describe(r, before, after)
				require.NoError(t, r.Sync(t.Context()))
				r.Wait()
				require.ElementsMatch(t, want, table.Flows())
			})
		}
	}
}

func TestClausesOnTheFake(t *testing.T) {
	testClauses(t, func(*testing.T) testTable { return &fakeTable{} })
}
