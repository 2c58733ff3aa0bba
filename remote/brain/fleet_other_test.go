//go:build !linux

package brain

import "time"

// serveFleet is for benchmarks that run on Linux.
func serveFleet() bool { return false }

// processCPU is not known.
func processCPU() time.Duration { return 0 }
