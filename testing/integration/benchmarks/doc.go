// Package benchmarks measures examples/kube-proxy side by side with Kubernetes' own kube-proxy: the same API server,
// the same objects, the same criterion, one after the other in one run. It needs root and what ../build makes;
// docs/benchmarks.md says how to run it and what came out.
//
// Each proxy runs in a network namespace of its own, the node. Another one holds all pods: every address that an
// endpoint can have is one of its own, and who connects is told which one answered. So all that is said about rules is
// said by packets.
//
// BenchmarkBrain is another matter: what a change costs with a watch for each node, and with examples/brain.
//
// The benchmarks print figures, and beside them whether the project's goals hold. They fail when there is no figure,
// and with KPL_GOALS=1, which is for a release and for a machine that does nothing else, when a goal is missed.
package benchmarks
