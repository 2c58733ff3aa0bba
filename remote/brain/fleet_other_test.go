//go:build !linux

package brain

// serveFleet is for benchmarks that run on Linux.
func serveFleet() bool { return false }
