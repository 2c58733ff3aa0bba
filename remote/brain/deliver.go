package brain

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// firstBeat is the time until the first heartbeat if there is no state for a client yet. Until then the client knows
// neither that the server is alive nor the interval of heartbeats.
const firstBeat = time.Second

// start starts to send the state and heartbeats, until stop.
func (c *client) start() {
	c.mu.Lock()
	c.heartbeat = time.AfterFunc(min(firstBeat, c.server.limits.heartbeat), c.beat)
	c.mu.Unlock()
	if c.begin() {
		go c.send()
	}
}

// stop waits until no goroutine sends. It is called after the end of the stream, so no send can block.
func (c *client) stop() {
	c.mu.Lock()
	c.closed = true
	c.heartbeat.Stop()
	if c.wake != nil {
		c.wake.Stop()
	}
	c.mu.Unlock()
	c.senders.Wait()
}

// announce records that an update is pending, and reports whether it can be delivered now. If the client has a batch in
// flight, the update is sent after the acknowledgement.
func (c *client) announce(seen time.Time) (deliverable bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.news = true
	if c.newsSeen.IsZero() {
		c.newsSeen = seen
	}
	return !c.busy && !c.sends && !c.holds()
}

// holds reports whether a pending update has to wait because the client pauses, and schedules it for the end of the
// pause. If it were sent at once, later changes would have to wait until the client has applied and acknowledged it.
// The caller holds the client's mu.
func (c *client) holds() bool {
	if c.pausedUntil.IsZero() {
		return false
	}
	wait := time.Until(c.pausedUntil)
	if wait <= 0 {
		return false
	}
	if c.behind.IsZero() {
		c.behind = time.Now()
	}
	switch {
	case c.closed || c.wakes:
		return true
	case c.wake == nil:
		c.wake = time.AfterFunc(wait, c.pauseEnded)
	default:
		c.wake.Reset(wait)
	}
	c.wakes = true
	return true
}

// pauseEnded sends the update that waited for the end of the client's pause.
func (c *client) pauseEnded() {
	c.mu.Lock()
	c.wakes = false
	long := c.pausesLong
	c.mu.Unlock()
	if c.begin() {
		if long {
			c.server.pace.messages.held.Add(1)
		}
		c.send()
	}
}

// begin makes the caller the sender if an update is pending, the client has nothing in flight, and no other goroutine
// sends. The caller calls finish afterwards.
func (c *client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sends || c.closed || !c.takeNews() {
		return false
	}
	c.sends = true
	c.senders.Add(1)
	return true
}

// finish ends what begin began. If there is more to send by now, it returns true and the caller continues to send. err
// is the error of sending, and ends the stream.
func (c *client) finish(err error) (again bool) {
	if err != nil {
		c.end(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && !c.closed && c.takeNews() {
		return true
	}
	c.sends = false
	c.senders.Done()
	return false
}

// takeNews reports whether an update is pending that can be sent now, and marks it as taken. None can once the stream
// is about to end: the client may not even have a state. The caller holds the client's mu.
func (c *client) takeNews() bool {
	taken := c.news && !c.busy && c.cause == nil && !c.holds()
	if taken {
		c.news, c.sentSeen, c.newsSeen = false, c.newsSeen, time.Time{}
	}
	return taken
}

// send brings the client up to date. The caller has called begin. It may take long: the client may be slow, and its
// class may have to be created first.
func (c *client) send() {
	for again := true; again; {
		again = c.finish(c.sendNews())
	}
}

func (c *client) sendNews() error {
	view, batches, ok, err := c.newest()
	if ok && !c.introduced && c.goesBack(view) {
		view, batches, ok, err = c.catchUp()
	}
	switch {
	case err != nil || !ok: // until there is a state, heartbeats show that the server is alive
		return err
	case !c.introduced:
		err = c.introduce(view, batches, c.resume)
		c.introduced, c.resume, c.seen = true, nil, nil
		return err
	case c.verify:
		c.verify = false
		if err := c.sendHeartbeat(); err != nil {
			return err
		}
	}
	return c.advance(view, batches)
}

// deliver sends the pending update. It is quick, so that one goroutine can do it for all clients: it sends one message
// that the clients of a class share, and leaves everything else to another goroutine. Normally that message does not
// block, because the client has acknowledged all earlier ones except heartbeats. toDeliver handles clients that
// acknowledge messages without reading them.
func (c *client) deliver() {
	if !c.begin() {
		return
	}
	if f := c.sharedNews(); f == nil || c.finish(c.sendFrame(f)) {
		go c.send()
	}
}

// beat sends a heartbeat if nothing was sent for long enough and the server is up to date.
func (c *client) beat() {
	every := c.server.limits.heartbeat
	if !c.expires.IsZero() && time.Now().After(c.expires) {
		c.end(status.Error(codes.Unauthenticated, "the client's certificate has expired"))
		return
	}
	fresh := c.server.fresh() == nil
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	busy := c.busy || c.sends
	if late := time.Since(c.until); late > 0 && !busy || late > c.server.limits.maxOverdue {
		c.mu.Unlock()
		c.end(status.Error(codes.Aborted, "the stream is old: connect again, to any server"))
		return
	}
	silent := time.Since(c.spoke)
	due := silent >= every && !c.sends && fresh
	if due {
		c.sends = true
		c.senders.Add(1)
	}
	if silent >= every {
		silent = 0
	}
	c.heartbeat.Reset(every - silent)
	c.mu.Unlock()
	if due && c.finish(c.sendHeartbeat()) {
		c.send()
	}
}

// toDeliver are the clients to deliver to.
type toDeliver []*client

// announce records for a client that an update is pending, and adds the client if the update can be delivered now. seen
// is when the server saw the change; zero: not known. The caller holds the Server's mu.
func (d *toDeliver) announce(c *client, seen time.Time) {
	if c.announce(seen) {
		*d = append(*d, c)
	}
}

// order sorts clients in the order in which they connected, starting with a random one, so that none is always last.
// Clients that connected one after the other are close together in memory: in a random order, gRPC takes a fifth more
// processor time for a delivery.
func (d toDeliver) order() {
	slices.SortFunc(d, func(a, b *client) int { return cmp.Compare(a.number, b.number) })
	if len(d) > 0 {
		first := rand.N(len(d))
		slices.Reverse(d[:first])
		slices.Reverse(d[first:])
		slices.Reverse(d)
	}
}

// heldUp is how long a delivery may block before other goroutines continue with the remaining clients.
const heldUp = 20 * time.Millisecond

// deliver delivers to one client after the other. The caller holds no lock. A client that acknowledges messages without
// reading them can block its sender. Then other goroutines continue with the remaining clients, twice as many each time
// that all of them are blocked: however many such clients there are, the others wait a small multiple of heldUp.
func (d toDeliver) deliver() { forEach(len(d), func(i int) { d[i].deliver() }) }

// forEach calls a function for the numbers below n, one after the other unless a call blocks.
func forEach(n int, f func(i int)) {
	var taken atomic.Int64
	end := make(chan struct{})
	var once sync.Once
	work := func() {
		for i := int(taken.Add(1)); i <= n; i = int(taken.Add(1)) {
			f(i - 1)
		}
		once.Do(func() { close(end) })
	}
	go work()
	watch := time.NewTicker(heldUp)
	defer watch.Stop()
	workers := 1
	for before := int64(0); ; {
		select {
		case <-end:
			return
		case <-watch.C:
			now := taken.Load()
			if now == before {
				for range workers {
					go work()
				}
				workers *= 2
			}
			before = now
		}
	}
}
