package userspace

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// relay is a client's connection and the one to its endpoint.
type relay struct {
	client, server net.Conn
	slot           *slot
	closeWait      time.Duration // the timeout once one direction has ended
	checkEvery     time.Duration // at least how often to check whether a side is gone

	mu      sync.Mutex
	timeout time.Duration // of both directions
	open    int           // directions that have not ended
	idle    time.Duration // for how long the directions, added up, have had no data
}

// checkPause is the time between checks whether a side is gone.
const checkPause = time.Minute

// errGone is why copying ends when the connection that it writes to was reset.
var errGone = errors.New("connection reset by peer")

func (b *Backend) newRelay(client, server net.Conn, s *slot) *relay {
	return &relay{client: client, server: server, slot: s, open: 2, checkEvery: checkPause,
		timeout: b.options.tuning.TCPEstablishedTimeout, closeWait: b.options.tuning.TCPCloseWaitTimeout}
}

// run copies in both directions until both have ended. It passes on the end of each direction, and resets.
//
// If a connection is reset while a read and a write are in progress, the kernel reports that to only one of them. If it
// is the write, the read returns as at a regular end. That end must not be passed on, because data is missing.
//
// A side that has ended its half can be gone soon after, such as a client that gives up waiting. What it sent is
// complete, and the other side may not have read it yet, so that connection is closed without a reset.
func (r *relay) run() {
	var wg sync.WaitGroup
	var toServer, toClient atomic.Bool // this direction has ended regularly
	copyTo := func(to, from net.Conn, ended, opposite *atomic.Bool) {
		err := r.copy(to, from)
		gone := err == nil && cannotSend(from) && !opposite.Load()
		ended.Store(err == nil)
		half, ok := to.(interface{ CloseWrite() error })
		if errors.Is(err, errGone) && opposite.Load() {
			_ = to.Close()
			_ = from.Close()
		} else if err != nil || gone || !ok || half.CloseWrite() != nil {
			reset(to)
			reset(from)
		}
		r.end(to)
	}
	wg.Go(func() { copyTo(r.server, r.client, &toServer, &toClient) })
	copyTo(r.client, r.server, &toClient, &toServer)
	wg.Wait()
	_ = r.client.Close()
	_ = r.server.Close()
}

// copy copies until the connection that it reads from ends, the other one is gone, or both have been idle for too long.
// A read that runs into its deadline loses nothing.
func (r *relay) copy(to, from net.Conn) error {
	for {
		r.await(from)
		n, err := io.Copy(to, from) // splice on Linux
		switch {
		case !errors.Is(err, os.ErrDeadlineExceeded) || r.isIdle(n):
			return err
		case cannotSend(to): // the opposite direction does not notice that while it writes, or once it has ended
			return errGone
		}
	}
}

// pause is how long a direction reads before it checks whether data has arrived. r.mu is held.
func (r *relay) pause() time.Duration { return min(r.checkEvery, r.timeout/2) }

// await sets the deadline at which reading is interrupted for that check.
func (r *relay) await(from net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = from.SetReadDeadline(time.Now().Add(r.pause()))
}

// isIdle notes that a direction has read n bytes in a pause, and returns whether the connection has to end. The two
// directions check at different times: when they have been idle for one and a half timeouts each, they have been idle
// at the same time for a whole one. The direction that is not idle may be in a write that its receiver does not read:
// then the other one counts for both.
func (r *relay) isIdle(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle += r.pause(); n > 0 {
		r.idle = 0
		r.slot.touch()
	}
	return r.idle/time.Duration(r.open)/3*2 >= r.timeout
}

// end notes that a direction has ended, and that the other one reads from a connection.
func (r *relay) end(other net.Conn) {
	r.mu.Lock()
	r.open, r.idle, r.timeout = 1, 0, min(r.timeout, r.closeWait)
	r.mu.Unlock()
	r.await(other)
}

// reset closes a connection with a TCP reset.
func reset(c net.Conn) {
	if l, ok := c.(interface{ SetLinger(int) error }); ok {
		_ = l.SetLinger(0)
	}
	_ = c.Close()
}
