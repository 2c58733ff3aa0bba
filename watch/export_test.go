package watch

import (
	"net/http"
	"time"
)

// AfterFunc is [time.AfterFunc], or what tests use instead.
type AfterFunc = func(time.Duration, func()) interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// SetAfterFunc replaces [time.AfterFunc] for the time after which streamed lists that do not end are given up.
func (c *Clientset) SetAfterFunc(after AfterFunc) {
	c.after = func(d time.Duration, f func()) timer { return after(d, f) }
}

// ListFallbackAfter returns a ListFallback with another [time.AfterFunc].
func ListFallbackAfter(after AfterFunc) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper {
		return newListFallback(next, func(d time.Duration, f func()) timer { return after(d, f) })
	}
}

// SetHint sets how long Run waits before it logs that informers may not have been started.
func (s *Informers) SetHint(d time.Duration) { s.hint = d }
