package machine

import (
	"context"
	"time"
)

// controlInterval is the time between two control connections.
const controlInterval = 100 * time.Millisecond

// Control makes control connections: connections like those of the suite that no proxy handles.
type Control struct {
	w *Watch
	// try makes one, and reports whether every packet of it arrived.
	try func() bool
}

// NewControl returns a control. try makes one connection, and reports whether it was answered without losing a packet.
func (w *Watch) NewControl(try func() bool) *Control { return &Control{w, try} }

// Run makes one connection after the other until the context ends. The time of a connection counts from when it was
// due, and so includes any time in which the judge itself did not run.
func (c *Control) Run(ctx context.Context) {
	due := time.Now()
	for {
		c.w.set(c, due)
		whole := c.try()
		took := time.Since(due)
		if !whole {
			took = max(took, mostDelay)
		}
		c.w.ended(c, took)
		due = due.Add(max(controlInterval, took))
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
		}
	}
}

// set records when the control's next connection is due.
func (w *Watch) set(c *Control, due time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[c] = due
}

// ended records how long a control's connection took.
func (w *Watch) ended(c *Control, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.open, c)
	w.delay = max(w.delay, took)
}
