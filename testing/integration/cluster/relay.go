package cluster

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Relay lets programs in another network namespace reach the API server: it listens there and dials here.
type Relay struct {
	Port int // on the loopback interface of the other side

	target string
	do     func(func() error) // in the other network namespace
	serves sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while nobody listens
	open     map[net.Conn]bool
	cut      bool
	bytes    int64
}

// Relay makes a relay to the API server. do runs a function in the other network namespace. The relay ends with the
// test.
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

// listen listens at Port, or at any port if that is 0, and serves clients.
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

// Cut ends all connections, and until Mend every new one at once: to the other side the API server is gone, but not its
// machine.
func (r *Relay) Cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = true
	for conn := range r.open {
		_ = conn.Close()
	}
}

// Refuse does what Cut does, and stops listening until Mend.
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

// Bytes is the number of bytes received from the API server.
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

// counter counts what is read.
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
