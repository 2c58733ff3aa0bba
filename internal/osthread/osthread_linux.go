package osthread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Go calls f in a goroutine, on a thread that ends with it, so that what f does to the thread is nobody else's
// business. It is never the first thread of the process: that one cannot end, and /proc/self, which the rest of the
// system takes for the process, shows its namespace.
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
