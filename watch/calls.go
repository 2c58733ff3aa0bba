package watch

import "sync"

// calls counts calls that are under way, so that Run can wait for them before it returns and let no more begin:
// client-go leaves a list call to itself when its context ends, and goes on for a moment with an event handler that was
// removed.
type calls struct {
	mu      sync.Mutex
	stopped bool
	wg      sync.WaitGroup
}

// begin tells whether a call may begin; if so, done must follow.
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

// stop lets no more calls begin and waits for the others.
func (c *calls) stop() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.wg.Wait()
}
