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
	closeWait      time.Duration // the timeout once one direction has ended

	mu      sync.Mutex
	timeout time.Duration // of both directions
	open    int           // directions that have not ended
	idle    int           // how often in succession a direction had no data for half of the timeout
}

func (b *Backend) newRelay(client, server net.Conn) *relay {
	return &relay{client: client, server: server, open: 2,
		timeout: b.options.tuning.TCPEstablishedTimeout, closeWait: b.options.tuning.TCPCloseWaitTimeout}
}

// run copies in both directions until both have ended. It passes on the end of each direction, and resets.
//
// If a connection is reset while a read and a write are in progress, the kernel reports that to only one of them. If it
// is the write, the read returns as at a regular end. That end must not be passed on, because data is missing.
func (r *relay) run() {
	var wg sync.WaitGroup
	var toServer, toClient atomic.Bool // this direction has ended regularly
	copyTo := func(to, from net.Conn, ended, opposite *atomic.Bool) {
		err := r.copy(to, from)
		gone := err == nil && cannotSend(from) && !opposite.Load()
		ended.Store(err == nil)
		half, ok := to.(interface{ CloseWrite() error })
		if err != nil || gone || !ok || half.CloseWrite() != nil {
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

// copy copies until the connection that it reads from ends, or both have been idle for too long. A read that runs into
// its deadline loses nothing.
func (r *relay) copy(to, from net.Conn) error {
	for {
		r.await(from)
		n, err := io.Copy(to, from) // splice on Linux
		if !errors.Is(err, os.ErrDeadlineExceeded) || r.isIdle(n) {
			return err
		}
	}
}

// await sets the time at which reading is interrupted to look whether data has come.
func (r *relay) await(from net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	_ = from.SetReadDeadline(time.Now().Add(r.timeout / 2))
}

// idleHalves is how many halves of the timeout each open direction has to be idle in succession. The two directions
// look at different times; with three, they have been idle at the same time for a whole timeout.
const idleHalves = 3

// isIdle notes that a direction has read n bytes in half of the timeout, and returns whether the connection has to end.
// The direction that is not idle may be in a write that nobody takes: then the other one counts for both.
func (r *relay) isIdle(n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle++; n > 0 {
		r.idle = 0
	}
	return r.idle >= idleHalves*r.open
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
