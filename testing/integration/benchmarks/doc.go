// Package benchmarks measures examples/kube-proxy side by side with Kubernetes' own kube-proxy: the same API server,
// the same objects, the same criterion, one after the other in one run. It needs root and what ../build makes;
// docs/benchmarks.md says how to run it and what came out.
//
// Each proxy runs in a network namespace of its own, the node. Another one holds all pods: it has every address that an
// endpoint can have, and its server tells clients which one answered. So packets decide whether a rule is applied.
//
// BenchmarkBrain measures something else: what a change costs with a watch for each node, and with examples/brain.
//
// The benchmarks print figures, and whether the project's goals hold. They fail without a figure. With KPL_GOALS=1, for
// a release on a machine that does nothing else, they also fail when a goal is missed.
package benchmarks
