// Package model is the node-local view of Kubernetes services: what one node has to do with service traffic, as plain
// values. Package localstate computes them from cluster objects; a test, or a program that has nothing to do with
// Kubernetes, builds them by hand. Backends read them and write rules.
//
// # What is in it
//
//   - A [Service] has addresses, ports, and for every port a decision for each kind of traffic: a [Route].
//   - An [Endpoint] is one destination, an address and port, of one service port. Its [EndpointSets] say which of the
//     port's two candidate sets it belongs to on this node.
//   - A [Node] is what a backend needs to know of the node and of the cluster around it.
//
// # The decision table
//
// A backend never looks at traffic policies. For every port and family it reads [Routes], which holds one [Route] for
// each kind of traffic, and writes three things for each: balance over the endpoints of the set Route.Endpoints;
// masquerade as Route.Masquerade says; when the set is empty, do what Route.Empty says. [NewRoutes] is the table.
// Everything that depends on readiness, topology hints and termination has already happened: it decided which sets an
// endpoint is in.
//
// # What always holds
//
// Package localstate guarantees this, and backends may rely on it. Programs that make values by hand have to guarantee
// it themselves:
//
//   - An endpoint in a set serves, and one in the local set is on this node. It is in no set that no route of its port
//     and family uses; endpoints of headless services, which have no routes, are in the cluster set alone.
//   - Where a route uses the cluster set, that set is empty only if no endpoint is usable anywhere: hints that would
//     leave this node nothing are ignored (S22). Then the local set is empty as well, and all routes of the port say
//     Reject.
//   - So an address of a service refuses either everybody or nobody. It may serve some sources and drop others.
//
// # Making values
//
// [NewService], [NewEndpoint] and [NewNode] check values that are made by hand, put them into the form that the fields
// promise, and name everything that is wrong at once. Values that come from package localstate have that form. [Check]
// holds a service and its endpoints against what always holds; [sink.Recorder] does so with all that a sink is told.
//
// # Ownership
//
// Values are immutable once they have been handed over: a receiver of a *Service, *Endpoint or *Node may keep it
// forever and read it from any goroutine, and nobody may write to it. A change is a new value.
//
// # Compatibility
//
// The types are structs, so that a new field breaks nobody: use field names in literals. The JSON names are stable. The
// package imports the standard library only.
//
// [sink.Recorder]: https://pkg.go.dev/sigs.k8s.io/kube-proxy-lib/sink#Recorder
package model
