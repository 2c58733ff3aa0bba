//go:build !unix

package testkit

import "time"

const tellsProcessorTime = false

// ProcessorTime returns 0: it is not known.
func ProcessorTime() time.Duration { return 0 }
