//go:build !linux

package remote

// serveFleet is for benchmarks that run on Linux.
func serveFleet() bool { return false }
