package brain

import (
	"syscall"
	"time"
)

// processTime returns the processor time of this process, in user and kernel mode, or false if it is not known.
func processTime() (time.Duration, bool) {
	self, err := syscall.GetCurrentProcess()
	if err != nil {
		return 0, false
	}
	var created, ended, kernel, user syscall.Filetime
	if syscall.GetProcessTimes(self, &created, &ended, &kernel, &user) != nil {
		return 0, false
	}
	const tick = 100 * time.Nanosecond // Nanoseconds is since 1970: these are spans
	ticks := func(f syscall.Filetime) time.Duration {
		return time.Duration(int64(f.HighDateTime)<<32 | int64(f.LowDateTime))
	}
	return (ticks(kernel) + ticks(user)) * tick, true
}
