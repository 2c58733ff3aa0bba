// Package model is the node-local view of Kubernetes services: what one node must do with service traffic, as plain
// values. Package localstate computes them from cluster objects; a test, or a program without Kubernetes, builds them
// by hand. Backends read them and write rules.
//
// # Contents
//
//   - A [Service] has addresses, ports, and for every port a decision for each kind of traffic: a [Route].
//   - An [Endpoint] is an address and port that serves one service port. Its [EndpointSets] say to which of the port's
//     two endpoint sets it belongs on this node.
//   - A [Node] has what a backend needs to know about the node and the cluster.
//
// # The decision table
//
// A backend never looks at traffic policies. For every port and family it reads [Routes], which holds one [Route] for
// each kind of traffic, and programs three things for each: balance over the endpoints of the set Route.Endpoints;
// masquerade as Route.Masquerade says; when the set is empty, do what Route.Empty says. [NewRoutes] is the table.
// Readiness, topology hints and termination have already been taken into account: they decide which sets an endpoint is
// in.
//
// # Invariants
//
// Package localstate guarantees the following, and backends may rely on it. Programs that create values themselves have
// to guarantee it, too:
//
//   - An endpoint in a set is serving, and one in the local set is on this node. An endpoint is only in sets that a
//     route of its port and family uses, unless the source of the values was asked for others as well; endpoints of
//     headless services, which have no routes, are in the cluster set only.
//   - If a route uses the cluster set, that set is empty only if no endpoint is usable anywhere: hints that would leave
//     this node without endpoints are ignored (S22). Then the local set is empty as well, and all routes of the port
//     say Reject.
//   - So an address of a service rejects either all sources or none. It may serve some sources and drop others.
//
// # Creating values
//
// [NewService], [NewEndpoint] and [NewNode] check values, normalise them as the fields' documentation promises, and
// report all errors at once. Values from package localstate are already in that form. [Check] checks the invariants for
// a service and its endpoints; [sink.Recorder] does so for everything that a sink receives.
//
// # Ownership
//
// Values are immutable once they have been handed over: a receiver of a *Service, *Endpoint or *Node may keep it
// forever and read it from any goroutine, and nobody may write to it. A change creates a new value.
//
// # Compatibility
//
// The types are structs, so that a new field breaks nobody: use field names in literals. The JSON names are stable. The
// package imports the standard library only.
//
// [sink.Recorder]: https://pkg.go.dev/sigs.k8s.io/kube-proxy-lib/sink#Recorder
package model
