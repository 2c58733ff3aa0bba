// Package benchmarks measures examples/kube-proxy side by side with Kubernetes' own kube-proxy, one after the other in
// one run, by testing/judge and its flag --speed. It needs root and what ../build makes; docs/benchmarks.md says how to
// run it and what came out.
//
// BenchmarkBrain and BenchmarkStart measure something else, with a real API server: what a change costs with a watch for
// each node, and with examples/brain; and what of a start is client-go's.
//
// The benchmarks print figures, and whether the project's goals hold. They fail without a figure. With KPL_GOALS=1, for
// a release on a machine that does nothing else, they also fail when a goal is missed.
package benchmarks
