package watch

import "time"

// SetAfterFunc replaces [time.AfterFunc] for the time after which streamed lists that do not end are given up.
func (c *Clientset) SetAfterFunc(after func(time.Duration, func()) interface {
	Stop() bool
	Reset(d time.Duration) bool
}) {
	c.after = func(d time.Duration, f func()) timer { return after(d, f) }
}

// SetHint sets how long Run waits before it logs that informers may not have been started.
func (s *Informers) SetHint(d time.Duration) { s.hint = d }
