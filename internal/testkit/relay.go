package testkit

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Relay passes the connections of a listener on to a server, perhaps from one network namespace to another, and can
// end them.
type Relay struct {
	listener         net.Listener
	network, address string
	failed           func(error)
	accepts          sync.WaitGroup // the loop that accepts

	mu    sync.Mutex
	ctx   context.Context // of all connections that are open
	end   context.CancelFunc
	open  *sync.WaitGroup // the connections of ctx
	conns int             // number of connections so far
}

// NewRelay passes connections on until Close, which closes the listener too. Unless it is nil, failed is called when a
// connection cannot be accepted, or the server cannot be reached. The server is dialled in the network namespace of the
// process, whatever thread calls this. failed must not call Block, Cut or Close, which wait for it.
func NewRelay(listener net.Listener, network, address string, failed func(error)) *Relay {
	if failed == nil {
		failed = func(error) {}
	}
	r := &Relay{listener: listener, network: network, address: address, failed: failed}
	r.Unblock()
	r.accepts.Go(func() {
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
			r.accepted(conn)
		}
	})
	return r
}

// accepted passes conn on, unless the relay is blocked.
func (r *Relay) accepted(conn net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns++
	ctx := r.ctx
	if ctx.Err() != nil {
		_ = conn.Close()
		return
	}
	r.open.Go(func() { r.serve(ctx, conn) })
}

// Connections returns the number of connections so far.
func (r *Relay) Connections() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.conns
}

// Cut ends all connections, and returns when they are closed. New ones are passed on.
func (r *Relay) Cut() {
	r.Block()
	r.Unblock()
}

// Block ends all connections and, until Unblock, every new one: the server seems to be down, but its machine answers.
// It returns when those that were open are closed.
func (r *Relay) Block() {
	r.mu.Lock()
	r.end()
	open := r.open
	r.mu.Unlock()
	open.Wait()
}

// Unblock undoes Block.
func (r *Relay) Unblock() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil || r.ctx.Err() != nil {
		r.ctx, r.end = context.WithCancel(context.Background())
		r.open = new(sync.WaitGroup)
	}
}

// Close ends all connections, and the relay.
func (r *Relay) Close() {
	_ = r.listener.Close()
	r.Block()
	r.accepts.Wait()
}

// serve copies data in both directions until either side closes the connection, or ctx ends.
func (r *Relay) serve(ctx context.Context, client net.Conn) {
	defer func() { _ = client.Close() }()
	server, err := new(net.Dialer).DialContext(ctx, r.network, r.address)
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
