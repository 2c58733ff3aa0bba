package osthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Go calls f in a goroutine with its own thread, which ends with it, so that changes to the thread affect nothing else.
// It is never the process's first thread: that one cannot end, and /proc/self shows its namespace as the process's.
func Go(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f() // Returning without unlocking ends the thread.
			return
		}
		taken := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(taken)
			f()
		}()
		<-taken
		runtime.UnlockOSThread()
	}()
}
