// Package oracle says what must happen to a packet: given the node-local state, the node's configuration and a new
// flow, which endpoints the flow may reach and with which source address, or that it is rejected, dropped, or none of a
// service proxy's business. It is the specification of a backend in plain Go, written to be read, and what package
// conformance judges backends by.
//
// # What it covers
//
// The rules S25 to S36 for new flows: empty endpoint sets (S25), load-balancer source ranges (S26), traffic policies
// (S27), masquerading (S28 to S30), session affinity (S32), unknown ports and unallocated addresses (S33), node-port
// addresses (S35, S36). What readiness, topology and termination decide is in the model already, as are the routes; the
// oracle applies them, it does not compute them again.
//
// # For people
//
// [Oracle.Ask] takes a question as a person asks it, "pod default/web-1 -> 10.96.0.10:53/UDP", and the [Answer] has the
// reasons, each with the number of its rule in docs/semantics.md. print-state --flow prints it, package page shows it.
//
// # Where several answers are right
//
// Then an [Outcome] has the best one and lists every other one in AlsoAllowed. Nothing is left vague: what is in
// neither is wrong.
//
// # Without packets
//
// [Compare] holds a decision function against all this, with random flows: the simulator of a dataplane, or the part of
// a proxy that chooses an endpoint.
//
// # What it never does
//
// It does not judge established connections, and it does not say which endpoint of a set is chosen, beyond affinity:
// that the choice is balanced is a matter of many flows.
package oracle
