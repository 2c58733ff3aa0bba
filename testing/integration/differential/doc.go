// Package differential compares localstate with the code that decides in Kubernetes' own kube-proxy: pkg/proxy's change
// trackers and CategorizeEndpoints. It has tests and benchmarks only.
//
// Random clusters and sequences of changes go through both. After every sync both say what this node must do, in one
// form: for each service port and family its addresses, source ranges, policies, affinity, sets of endpoints and
// routes; for each service its health check; for the node its zone, its addresses and whether load balancers should use
// it; and which services are news. The objects are such as an API server lets exist, which is tested with upstream's
// own validation; a second test adds objects that are malformed. Any difference but the documented departures fails.
//
//	go test .                                            # a fixed number of seeds, some seconds
//	KPL_DIFFERENTIAL_SEEDS=1000000 go test -timeout 1h . # more of them
//	KPL_DIFFERENTIAL_SEED=64 go test .                   # this one only
//	go test -run - -fuzz FuzzAgainstUpstream .           # guided by coverage; the first build takes minutes
//
// # A failure
//
// shows how both sides differ, and a script: the setup, the objects as YAML, and where a sync is. It has been made as
// small as can be without becoming a cluster that cannot exist. Save it as a file in testdata/found, so that it stays
// tried, and mend localstate.
//
// # What is compared and what is not
//
// Lists are compared as sets: upstream keeps duplicates and the object's order, localstate sorts. Source ranges are
// compared by what they let through. Upstream's routes exist only as rules; here they follow from the values that the
// nftables and iptables backends write their rules from. Rules themselves are compared by nobody here: see package
// conformance, which sends packets.
//
// # Benchmarks
//
//	go test -run TestBrains -bench Ratio .   # both in one loop, and how many times as long upstream's code takes
//	go test -run TestBrains -bench Brain .   # one after the other, with allocations
//	go test -run TestBrains -bench Memory .  # what is held for each endpoint
//
// Upstream's side is what its nftables proxier does at every sync before it writes rules: it takes the changes in,
// categorizes the endpoints of every service and counts local endpoints. It is measured without the chain names that
// the proxier adds to each service and endpoint, and without metrics and logs; in that it is measured too cheap.
// Localstate's side has more to do: it works out both what upstream does and what has changed since the last sync, the
// routes, and a value for each endpoint; "+fullstate" adds the snapshot that a backend gets. So what can be compared is
// the way from an event to a complete answer. What cannot: upstream's backends go on to look at every service at every
// sync, a backend here at what changed; that is in neither figure. "First full state" is one family, as everything
// here; kube-proxy has each of these twice on a dual-stack node. The memory of upstream's side holds the EndpointSlice
// objects, as its slice cache does.
//
// # Departures
//
// Where docs/semantics.md says "depart", an entry in allDepartures normalises what upstream is told or, if there is no
// other way, what it says, and as little of it as possible. To add one: describe it in docs/semantics.md, add the
// entry, and run TestDepartures, which finds a case in which both sides really differ without the entry and agree with
// it, makes it small, and says under which name in testdata/departures to save it. It fails for an entry that is dead,
// too.
package differential
