//go:build !unix

package localstate

import "time"

func processorTime() time.Duration { return 0 }
