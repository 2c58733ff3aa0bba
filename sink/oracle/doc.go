// Package oracle computes what must happen to a packet: given the node-local state, the node's configuration and a new
// flow, it returns which endpoints the flow may reach and with which source address, or that it is rejected, dropped,
// or not for a service proxy at all. It is the specification of a backend in plain Go, written to be read. Package
// conformance checks backends against it.
//
// # What it covers
//
// It covers the rules S25 to S36 for new flows: empty endpoint sets (S25), load-balancer source ranges (S26), traffic
// policies (S27), masquerading (S28 to S30), session affinity (S32), unknown ports and unallocated addresses (S33),
// node-port addresses (S35, S36). The model already reflects readiness, topology and termination, and has the routes;
// the oracle applies these and does not compute them again.
//
// # For people
//
// [Oracle.Ask] takes a question in readable form, "pod default/web-1 -> 10.96.0.10:53/UDP", and the [Answer] has the
// reasons, each with the number of its rule in docs/semantics.md. kubectl serviceproxy flow prints it, package page
// shows it.
//
// # Several right answers
//
// If several answers are right, an [Outcome] has the best one and lists the others in AlsoAllowed. Everything else is
// wrong.
//
// # What it never does
//
// It does not judge established connections, and it does not say which endpoint of a set is chosen, except for
// affinity: whether the choice is balanced shows only in many flows.
package oracle
