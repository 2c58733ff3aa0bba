// Package benchmarks measures examples/kube-proxy side by side with Kubernetes' own kube-proxy: the same API server, the same
// objects, the same criterion, one after the other in one run. It needs root and what ../build makes; docs/benchmarks.md says
// how to run it and what came out.
//
// Each proxy runs in a network namespace of its own, the node. Another one holds all pods: every address that an endpoint can
// have is one of its own, and who connects is told which one answered. So all that is said about rules is said by packets.
//
// Nothing here decides whether a change is good: the benchmarks print figures, and fail only when there is none.
package benchmarks
