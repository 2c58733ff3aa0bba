// Package localstate is the only place that knows what Kubernetes services mean. It takes cluster objects and computes,
// for one node, the services and endpoints of package model.
//
// A [State] is told of objects as they come and go, in any order ([State.SetService], [State.SetEndpointSlice],
// [State.SetNode] and so on), and hands over what changed for this node when [State.Flush] is called:
//
//	state, err := localstate.New(ctx, localstate.Options{NodeName: "node-1"})
//	state.SetService(service)
//	state.SetEndpointSlice(slice)
//	state.Flush(sink) // sink.SetNode, SetService, SetEndpoint ...
//
// # Guarantees
//
//   - Both IP families, in one service: a dual-stack pod is two endpoints.
//   - An event marks the services that it affects, and Flush recomputes those and no others. Only what differs from
//     what was last handed over goes on: a change that does not alter this node's result is not seen by the receiver,
//     and nor are changes that revert before the Flush.
//   - The cost follows the change inside a service, too: one endpoint of 50,000 costs about what one of 10 does. All
//     endpoints of a service port are looked at when what applies to all of them changes: a traffic policy, or whether
//     topology hints count.
//   - The order of events does not matter: the same objects give the same result.
//   - Bad input (an invalid address, a port out of range, a missing field) is skipped with a log line that names the
//     object, and everything else goes on.
//   - API objects are not kept, only what is needed of them.
//
// # On request
//
// What a service proxy does not need is left out unless [Options] enable it, so that nobody else pays for it: details
// of endpoints, draining endpoints, headless services and those of type ExternalName.
//
// # Memory
//
// An endpoint takes about 140 bytes, most of it the value that has been handed over; a service takes some 1,300.
// Details of endpoints, if enabled, are kept once for all ports of a pod.
//
// # Why is this endpoint not used?
//
// [State.Explain] lists every endpoint that is known for a service, with its sets and the reason.
//
// # Rules
//
// The behaviour is that of kube-proxy of Kubernetes 1.36, or deliberately better where the project's list of semantics,
// docs/semantics.md, says "depart". Comments and tests name the rules by their number there: S1, S2 ...
package localstate
