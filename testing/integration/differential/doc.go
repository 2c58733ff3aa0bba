// Package differential compares localstate with the code that makes these decisions in Kubernetes' own kube-proxy:
// pkg/proxy's change trackers and CategorizeEndpoints. It has only tests and benchmarks.
//
// Both process random clusters and sequences of changes. After every sync both results are converted to one form: for
// each service port and family its addresses, source ranges, policies, affinity, endpoint sets and routes; for each
// service its health check; for the node its zone, its addresses and whether load balancers should use it; and which
// services changed. The objects are valid according to upstream's own validation; a second test adds malformed ones.
// Any difference fails, except a documented departure.
//
//	go test .                                            # a fixed number of seeds, some seconds
//	KPL_DIFFERENTIAL_SEEDS=1000000 go test -timeout 1h . # more of them
//	KPL_DIFFERENTIAL_SEED=64 go test .                   # this one only
//	go test -run - -fuzz FuzzAgainstUpstream .           # guided by coverage; the first build takes minutes
//	../use next go test -count=1 ./differential          # with the code of the next Kubernetes
//
// # A failure
//
// shows the difference and a script: the setup, the objects as YAML, and the syncs. It is reduced as far as possible
// while the cluster stays valid. Save it as a file in testdata/found, so that every later run includes it, and fix
// localstate.
//
// # What is compared
//
// Lists are compared as sets: upstream keeps duplicates and the object's order, localstate sorts. Source ranges are
// compared by the addresses that they allow. Upstream has routes only as rules; here they are derived from the values
// that its nftables and iptables backends render. Rules are not compared: package conformance tests them with packets.
//
// # Benchmarks
//
//	go test -run TestBrains -bench Ratio .   # both in one loop, and how many times as long upstream's code takes
//	go test -run TestBrains -bench Brain .   # one after the other, with allocations
//	go test -run TestBrains -bench Memory .  # what is held for each endpoint
//
// Upstream's side is what its nftables proxier does at every sync before it writes rules: it applies the changes,
// categorizes every service's endpoints and counts local endpoints. It is measured without the chain names that the
// proxier adds to each service and endpoint, and without metrics and logs, so its figure is too low. Localstate's side
// does more: it also computes what changed since the last sync, the routes, and a value for each endpoint; "+fullstate"
// adds the snapshot for a backend. So the figures compare the path from an event to a complete result. They exclude the
// backends' work: upstream's look at every service at every sync, and this project's only at what changed. "First full
// state", like all figures, is for one family; on a dual-stack node kube-proxy does everything twice. Upstream's memory
// includes the EndpointSlice objects, which its slice cache keeps.
//
// # Departures
//
// Where docs/semantics.md says "depart", an entry in allDepartures normalises upstream's input or, if that is
// impossible, its result, as little as possible. To add one: describe it in docs/semantics.md and docs/departures.md,
// add the entry, and run TestDepartures. It finds a case in which both sides differ without the entry and agree with
// it, reduces it, and prints the name in testdata/departures under which to save it. It also fails for an entry without
// effect.
package differential
