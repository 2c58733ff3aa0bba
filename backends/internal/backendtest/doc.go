// Package backendtest is what the tests and benchmarks of all backends need besides the conformance suite: clusters of
// any size, new flows whose loss is noticed, and a stopwatch for processor time. Only tests use it.
package backendtest
