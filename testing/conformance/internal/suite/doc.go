// Package suite runs the cases and the random states as Go tests: it prepares the testbed, decides which cases a
// backend need not pass, and reports what went wrong. Package conformance is its public API.
package suite
