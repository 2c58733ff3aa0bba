package cluster

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Relay makes the API server reachable from another network namespace: it listens there and dials here.
type Relay struct {
	Port int // on the loopback interface of the other namespace

	target string
	do     func(func() error) // runs a function in the other network namespace
	serves sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while not listening
	open     map[net.Conn]bool
	cut      bool
	bytes    int64
}

// Relay starts a relay to the API server. do runs a function in the other network namespace. The relay stops at the end
// of the test.
func (c *Cluster) Relay(t testing.TB, do func(func() error)) *Relay {
	t.Helper()
	r := &Relay{target: c.address(), open: map[net.Conn]bool{}, do: do}
	r.listen()
	require.NotNil(t, r.listener)
	t.Cleanup(func() {
		r.Refuse()
		r.serves.Wait()
	})
	return r
}

// listen listens on Port, or on any free port if it is 0, and serves clients.
func (r *Relay) listen() {
	r.do(func() error {
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", r.Port))
		if err != nil {
			return err
		}
		r.listener, r.Port = listener, listener.Addr().(*net.TCPAddr).Port
		r.serves.Go(func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				r.serves.Go(func() { r.serve(conn) })
			}
		})
		return nil
	})
}

// Cut closes all connections and, until Mend, every new one: the API server seems down, but its machine answers.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
	for conn := range r.open {
		_ = conn.Close()
	}
}

// Refuse is like Cut, but also stops listening until Mend.
func (r *Relay) Refuse() {
	r.mu.Lock()
	if r.listener != nil {
		_ = r.listener.Close()
		r.listener = nil
	}
	r.mu.Unlock()
	r.Cut()
}

// Mend undoes Cut and Refuse.
func (r *Relay) Mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = false
	if r.listener == nil {
		r.listen()
	}
}

// Bytes returns the number of bytes received from the API server.
func (r *Relay) Bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

func (r *Relay) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer server.Close()
	if !r.register(client, server) {
		return
	}
	defer r.unregister(client, server)
	var up sync.WaitGroup
	up.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	_, _ = io.Copy(client, counter{r, server})
	_ = client.Close()
	up.Wait()
}

func (r *Relay) register(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		r.open[conn] = true
	}
	return !r.cut
}

func (r *Relay) unregister(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		delete(r.open, conn)
	}
}

// counter counts the bytes read.
type counter struct {
	r *Relay
	io.Reader
}

func (c counter) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.bytes += int64(n)
	return n, err
}
