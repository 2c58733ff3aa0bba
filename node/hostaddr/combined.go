package hostaddr

// combined returns a function that makes another goroutine call f, at once or, if f is running, again after that. It
// does not wait, so a burst of thousands of changes causes few calls of f. stop waits until the last call of f has
// returned.
func combined(f func()) (call, stop func()) {
	due, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for range due {
			f()
		}
	}()
	call = func() {
		select {
		case due <- struct{}{}:
		default: // a call is pending already
		}
	}
	return call, func() {
		close(due)
		<-done
	}
}
