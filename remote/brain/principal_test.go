package brain

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/testing/fakemodel/kube"
)

// inZone returns the Hello of a node that names its zone.
func inZone(node, zone string) *remotev1.Hello {
	return &remotev1.Hello{Node: node, Options: wire.EncodeOptions(localstate.Options{Zone: zone})}
}

func (s *Server) numClasses() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.classes)
}

// Each class takes the memory of a whole state, and a client's options determine its class. So one node must not use up
// the limit of classes, neither at once nor one after the other.
func TestANodeMakesFewClasses(t *testing.T) {
	c := newCluster(append(baseObjects(), naming(append(numbered("zone ", maxPerPrincipal), "elsewhere")...))...)
	server := serve(t, Options{Source: c}, socket(t))
	var refused, served atomic.Int32
	var wg sync.WaitGroup
	for i := range maxPerPrincipal {
		stream := rawStream(t, server.target, inZone("n1", fmt.Sprint("zone ", i)))
		wg.Go(func() {
			if _, err := stream.Recv(); err == nil {
				served.Add(1)
			} else if status.Code(err) == codes.ResourceExhausted &&
				strings.Contains(err.Error(), "node n1 uses 4 classes of nodes already") {
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, maxClassesPerPrincipal, served.Load())
	assert.EqualValues(t, maxPerPrincipal-maxClassesPerPrincipal, refused.Load())
	assert.Equal(t, maxClassesPerPrincipal, server.numClasses())
	receiveBatch(t, rawStream(t, server.target, inZone("n2", "elsewhere")))
}

func TestANodeLeavesFewClasses(t *testing.T) {
	c := newCluster(append(baseObjects(), naming(append(numbered("zone ", 20), "b")...))...)
	server := serve(t, Options{Source: c}, socket(t))
	other := server.idle(t, "n2") // in a class of its own
	for i := range 20 {
		client := &client{server: &server.common, node: "n1", ctx: t.Context(), sends: true}
		require.NoError(t, server.join(client, localstate.Options{Zone: fmt.Sprint("zone ", i)}))
		_, _, ok, err := client.newest()
		require.NoError(t, err)
		require.True(t, ok)
		server.leave(client)
	}
	assert.LessOrEqual(t, server.numClasses(), maxClassesPerPrincipal+1)
	_, ok := server.classes[other.class.key]
	assert.True(t, ok, "it is in use")
}

// A node that moves is in one class, however often it moves.
func TestANodeMayMoveBetweenZones(t *testing.T) {
	c := newCluster(append(baseObjects(), naming(append(numbered("zone ", 3*maxClassesPerPrincipal), "a")...))...)
	server := serve(t, Options{Source: c, limits: limits{minInterval: -1}}, socket(t))
	client := rawStream(t, server.target, &remotev1.Hello{Node: "n1"})
	for i := range 3 * maxClassesPerPrincipal {
		batch := receiveBatch(t, client)
		last := batch[len(batch)-1]
		if i > 0 {
			assert.Equal(t, fmt.Sprint("zone ", i), last.Node.Zone)
		}
		sendAck(t, client, last.Sync.Revision)
		c.set(kube.Node("n1").Zone(fmt.Sprint("zone ", i+1)).InternalIP("192.0.2.1").Build())
	}
	assert.LessOrEqual(t, server.numClasses(), maxClassesPerPrincipal+1)
}

// A viewer's streams count for the viewer, whatever nodes it names.
func TestAViewersStreamsDoNotCountForItsNodes(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...)}, socket(t))
	join := func(node, viewer string) error {
		c := &client{server: &server.common, node: node, viewer: viewer, ctx: t.Context(), sends: true}
		err := server.join(c, localstate.Options{})
		if err == nil {
			t.Cleanup(func() { server.leave(c) })
			require.True(t, server.slotUsers.add(c.principal(), maxSlotUsers))
			server.slotUsers.done(c.principal())
		}
		return err
	}
	for range maxPerPrincipal {
		require.NoError(t, join("n1", "alice"))
	}
	assert.ErrorContains(t, join("n2", "alice"), "viewer alice already has 64 clients")
	require.NoError(t, join("n1", "bob"))
	require.NoError(t, join("n1", ""))

	ca := newAuthority(t)
	server = serveTCP(t, Options{Source: newCluster(baseObjects()...)},
		ServeOptions{TLS: ca.server(t), Viewers: []string{"alice"}})
	for who, node := range map[string]string{"alice": "n1", "system:node:n2": "n2"} {
		stream, err := streamWith(t, "passthrough:///"+server.target, credentials.NewTLS(ca.client(t, who)),
			&remotev1.Hello{Node: node})
		require.NoError(t, err)
		receiveBatch(t, stream)
	}
	server.mu.Lock()
	defer server.mu.Unlock()
	assert.Len(t, server.byPrincipal[principal{viewer: "alice"}], 1)
	assert.Len(t, server.byPrincipal[principal{node: "n2"}], 1)
	assert.Len(t, server.byPrincipal, 2)
}

// Clients without a certificate cannot be told apart: all of them together have a limited number of connections.
func TestConnectionsWithoutACertificateAreLimited(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...), limits: limits{maxClients: 1}}, socket(t))
	path := strings.TrimPrefix(server.target, "unix://")
	receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "n1"}))
	_, err := rawStream(t, server.target, &remotev1.Hello{Node: "n1"}).Recv()
	assert.ErrorContains(t, err, "there are already 1 clients", "it is told why")
	third, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer third.Close()
	require.NoError(t, third.SetReadDeadline(time.Now().Add(testTimeout)))
	_, err = third.Read(make([]byte, 1))
	assert.ErrorContains(t, err, "EOF")
}

// meteredListener counts the bytes that its connections have read.
type meteredListener struct {
	net.Listener
	read atomic.Int64
}

func (l *meteredListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return &meteredConn{conn, l}, err
}

type meteredConn struct {
	net.Conn
	of *meteredListener
}

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.of.read.Add(int64(n))
	return n, err
}

// cutConn sends so many bytes, and then nothing more, without saying so.
type cutConn struct {
	net.Conn
	left int
}

func (c *cutConn) Write(b []byte) (int, error) {
	n := min(len(b), c.left)
	if c.left -= n; n > 0 {
		if _, err := c.Conn.Write(b[:n]); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// The received part of a message takes memory, whoever sends it. So of a message that is too large no more is received
// than fits into the stream's window, and one that does not end is not waited for.
func TestUnfinishedMessagesTakeLittleMemory(t *testing.T) {
	const messages = 12 // of 8 MB each: a connection has 20 s for its handshake, also on a busy machine
	for name, tc := range map[string]struct {
		size, sent int
		most       int64 // of each message
		want       codes.Code
	}{
		"of 8 MB":                       {8 << 20, 9 << 20, wire.Window, codes.ResourceExhausted},
		"as large as is allowed":        {maxRequest - 100, 200 << 10, maxRequest, codes.DeadlineExceeded},
		"of 8 MB, of which little came": {8 << 20, 20 << 10, 20 << 10, codes.ResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			b := openServer(t)
			if b.maxAnswer = testTimeout; tc.want == codes.DeadlineExceeded {
				b.maxAnswer = time.Second
			}
			ln := &meteredListener{Listener: b.ln}
			stop, served := background(t, func(ctx context.Context) error { return b.Serve(ctx, ln, ServeOptions{}) })
			dial := func(ctx context.Context, path string) (net.Conn, error) {
				conn, err := (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(b.target, "unix://"))
				return &cutConn{conn, tc.sent}, err
			}
			hello := &remotev1.Request{Hello: &remotev1.Hello{Node: strings.Repeat("x", tc.size)}}
			var wg sync.WaitGroup
			for range messages {
				conn, err := grpc.NewClient("passthrough:///brain", grpc.WithContextDialer(dial),
					grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(16<<20)))
				require.NoError(t, err)
				defer conn.Close()
				wg.Go(func() {
					stream, err := remotev1.NewBrainClient(conn).Watch(t.Context())
					if !assert.NoError(t, err) {
						return
					}
					_ = stream.Send(hello) // Recv says why
					_, err = stream.Recv()
					assert.Equal(t, tc.want, status.Code(err), err)
				})
			}
			wg.Wait()
			const framing = 2 << 10
			assert.LessOrEqual(t, ln.read.Load(), messages*(tc.most+framing))
			stop()
			require.NoError(t, <-served)
		})
	}
}
