//go:build unix

package testkit

import (
	"syscall"
	"time"
)

const tellsProcessorTime = true

// ProcessorTime returns the processor time that this process has used, 0 if it is not known. The kernel's part is left
// out: most of it clears new memory, which a small heap needs once and a large one each time.
func ProcessorTime() time.Duration {
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano())
}
