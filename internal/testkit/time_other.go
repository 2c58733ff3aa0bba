//go:build !unix

package testkit

import "time"

// ProcessorTime returns 0: it is not known.
func ProcessorTime() time.Duration { return 0 }
