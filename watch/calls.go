package watch

import "sync"

// calls counts the calls in progress, so that Run can wait for them before it returns and prevent new ones: client-go
// abandons a list call when its context ends, and may still call an event handler for a moment after it was removed.
type calls struct {
	mu      sync.Mutex
	stopped bool
	wg      sync.WaitGroup
}

// begin reports whether a call may begin; if so, the caller must call done after it.
func (c *calls) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return false
	}
	c.wg.Add(1)
	return true
}

func (c *calls) done() { c.wg.Done() }

// stop prevents new calls and waits for those in progress.
func (c *calls) stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.wg.Wait()
}
