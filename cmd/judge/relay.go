package main

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// relay forwards connections from a listener in a node's network namespace to an API server outside.
type relay struct {
	listener net.Listener
	target   string
	// failed is called when the API server is unreachable.
	failed func(error)
	serves sync.WaitGroup
	end    context.CancelFunc

	mu    sync.Mutex
	conns int // number of connections so far
}

func newRelay(listener net.Listener, target string, failed func(error)) *relay {
	ctx, cancel := context.WithCancel(context.Background())
	r := &relay{listener: listener, target: target, failed: failed, end: cancel}
	r.serves.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // for example because of too many open files
				failed(err)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			r.mu.Lock()
			r.conns++
			r.mu.Unlock()
			r.serves.Go(func() { r.serve(ctx, conn) })
		}
	})
	return r
}

// connections returns the number of connections so far.
func (r *relay) connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns
}

// close closes all connections.
func (r *relay) close() {
	r.end()
	_ = r.listener.Close()
	r.serves.Wait()
}

// serve copies data in both directions until either side closes the connection. Its goroutine is not on a node's
// thread, so it dials outside the node.
func (r *relay) serve(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	var dialer net.Dialer
	server, err := dialer.DialContext(ctx, "tcp", r.target)
	if err != nil {
		if ctx.Err() == nil {
			r.failed(err)
		}
		return
	}
	defer func() { _ = server.Close() }()
	defer context.AfterFunc(ctx, func() {
		_ = client.Close()
		_ = server.Close()
	})()
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(client, server)
	_ = client.Close()
	up.Wait()
}
