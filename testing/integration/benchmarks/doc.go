// Package benchmarks compares cmd/kube-proxy with Kubernetes' own kube-proxy: it measures one after the other in the
// same run, with cmd/judge --speed. It needs root and the output of ../build; docs/benchmarks.md has instructions and
// results.
//
// BenchmarkBrain and BenchmarkStart use a real API server. They measure the cost of a change with one watch per node
// and with cmd/brain, and client-go's share of a start.
//
// The benchmarks print figures and whether the project's goals are met. They fail if a figure is missing. With
// KPL_GOALS=1, for releases on an idle machine, they also fail if a goal is missed.
package benchmarks
