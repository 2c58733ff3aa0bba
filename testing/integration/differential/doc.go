// Package differential compares localstate with the code that makes the decisions in Kubernetes' own kube-proxy:
// pkg/proxy's change trackers and CategorizeEndpoints. It has tests and benchmarks only.
//
// Random clusters and sequences of changes go through both. After every sync both say what this node must do, in one
// form: for each service port and family its addresses, source ranges, policies, affinity, sets of endpoints and
// routes; for each service its health check; for the node its zone, its addresses and whether load balancers should use
// it; and which services changed. The objects are valid, which is checked with upstream's own validation; a second test
// adds malformed ones. Any difference except a documented departure fails.
//
//	go test .                                            # a fixed number of seeds, some seconds
//	KPL_DIFFERENTIAL_SEEDS=1000000 go test -timeout 1h . # more of them
//	KPL_DIFFERENTIAL_SEED=64 go test .                   # this one only
//	go test -run - -fuzz FuzzAgainstUpstream .           # guided by coverage; the first build takes minutes
//
// # A failure
//
// shows how both sides differ, and a script: the setup, the objects as YAML, and where syncs happen. It has been
// reduced as far as possible while the cluster stays valid. Save it as a file in testdata/found, so that it is tried
// from then on, and fix localstate.
//
// # What is compared and what is not
//
// Lists are compared as sets: upstream keeps duplicates and the object's order, localstate sorts. Source ranges are
// compared by what they allow. Upstream's routes exist only as rules; here they are derived from the values that the
// nftables and iptables backends render. Rules themselves are not compared here: see package conformance, which sends
// packets.
//
// # Benchmarks
//
//	go test -run TestBrains -bench Ratio .   # both in one loop, and how many times as long upstream's code takes
//	go test -run TestBrains -bench Brain .   # one after the other, with allocations
//	go test -run TestBrains -bench Memory .  # what is held for each endpoint
//
// Upstream's side is what its nftables proxier does at every sync before it writes rules: it applies the changes,
// categorizes the endpoints of every service and counts local endpoints. It is measured without the chain names that
// the proxier adds to each service and endpoint, and without metrics and logs, so its figure is too low. Localstate's
// side does more: besides what upstream does, it works out what has changed since the last sync, the routes, and a
// value for each endpoint; "+fullstate" adds the snapshot that a backend gets. So the figures compare the path from an
// event to a complete answer. They do not include that upstream's backends then look at every service at every sync,
// and a backend here only at what changed. "First full state" is for one family, as everything here; kube-proxy has
// each of these twice on a dual-stack node. The memory of upstream's side holds the EndpointSlice objects, as its slice
// cache does.
//
// # Departures
//
// Where docs/semantics.md says "depart", an entry in allDepartures normalises upstream's input or, if there is no other
// way, its answer, and as little of it as possible. To add one: describe it in docs/semantics.md and
// docs/departures.md, add the entry, and run TestDepartures. That finds a case in which both sides differ without the
// entry and agree with it, reduces it, and says under which name in testdata/departures to save it. It also fails for
// an entry that makes no difference.
package differential
