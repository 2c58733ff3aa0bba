// Package localstate implements the semantics of Kubernetes services; no other package knows them. It takes cluster
// objects and computes, for one node, the services and endpoints of package model.
//
// A program tells a [State] about objects as they change, in any order, with [State.Apply]. [State.Flush] then hands
// over what changed for this node:
//
//	state, err := localstate.New(ctx, localstate.Options{NodeName: "node-1"}, localstate.ClusterOptions{})
//	changed, err := state.Apply(service, false)
//	changed, err = state.Apply(slice, false)
//	state.Flush(sink) // sink.SetNode, SetService, SetEndpoint ...
//
// # Guarantees
//
//   - Both IP families are in one service: a dual-stack pod has an endpoint in each.
//   - An event marks the services that it affects, and Flush recomputes only those. The receiver gets only what differs
//     from what was last handed over. It sees no change that does not alter this node's result or that is reverted
//     before the Flush.
//   - Within a service, too, the cost depends on what changes: one changed endpoint of 50,000 costs about as much as
//     one of 10. Flush looks at all endpoints of a service port only if something changes that applies to all of them:
//     a traffic policy, or whether topology hints are used.
//   - The order of events does not matter: the same objects give the same result. Only endpoints that are held on
//     request depend on what was there before (S66).
//   - Bad input (an invalid address, a port out of range, a missing field) is skipped with a log line that names the
//     object, and everything else goes on.
//   - API objects are not kept, only the data that is needed.
//
// # Optional data
//
// Some data that most service proxies do not need is computed only if [Options] and [ClusterOptions] enable it: details
// of endpoints, endpoints that get no new traffic, endpoint sets that no route uses, headless services and services of
// type ExternalName. ClusterOptions.AdmitService may edit or exclude each Service, and AdmitSlice each EndpointSlice.
//
// # Memory
//
// An endpoint takes about 140 bytes, most of it for the value that has been handed over; a service takes about 1,300.
// Details of endpoints, if enabled, are stored once for all ports of a pod.
//
// # Why is this endpoint not used?
//
// [State.Explain] lists all known endpoints of a service, with their sets and the reason.
//
// # Rules
//
// The behaviour is that of kube-proxy of Kubernetes 1.37, or deliberately better where docs/semantics.md says "depart".
// Comments and tests refer to the rules by their numbers there: S1, S2 ...
package localstate

// Where things are:
//
//	state.go, service.go, slice.go, node.go,
//	externalips.go                             what is kept of objects, and which services an object's change marks
//	options.go, class.go                       what belongs to one node, to a class of nodes, or to all
//	flush.go, flush_service.go, flush_port.go  what changed, service by service and port by port
//	rule.go                                    the decision: which endpoints a port uses, and how (S20 to S28)
//	entries.go, porttable.go                   the endpoints of slices, and their ports
//	index.go, nodeindex.go, nodepart.go        large services, and many nodes, at the cost of what changes
//	limits.go, hold.go, nolocal.go             bounds (S60), endpoints that are held (S66), a metric
//	explain.go                                 why an endpoint is not used
