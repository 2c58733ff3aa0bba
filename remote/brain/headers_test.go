package brain

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
)

// Types and flags of HTTP/2 frames.
const (
	frameData         = 0x0
	frameHeaders      = 0x1
	frameReset        = 0x3
	frameSettings     = 0x4
	framePing         = 0x6
	frameWindow       = 0x8
	frameContinuation = 0x9
	flagAck           = 0x1
	flagEndHeaders    = 0x4
	maxFrame          = 16 << 10
)

// rawClient is an HTTP/2 client that ignores what the server's settings ask for, but not its windows: those are
// enforced by gRPC.
type rawClient struct {
	net.Conn
	windows map[uint32]int // by stream; 0: of the connection
	reset   map[uint32]bool
	acked   bool // the last ping
	closed  bool
}

func newRawClient(t *testing.T, address string, config *tls.Config) *rawClient {
	t.Helper()
	config = config.Clone()
	config.NextProtos = []string{"h2"}
	conn, err := tls.Dial("tcp", address, config)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(testTimeout)))
	c := &rawClient{Conn: conn, windows: map[uint32]int{0: 65535}, reset: map[uint32]bool{}}
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	require.NoError(t, err)
	c.write(frameSettings, 0, 0, nil)
	return c
}

// write writes a frame, unless the server has closed the connection.
func (c *rawClient) write(kind, flags byte, stream uint32, payload []byte) {
	frame := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	frame = binary.BigEndian.AppendUint32(append(frame, flags), stream)
	if _, err := c.Write(append(frame, payload...)); err != nil {
		c.closed = true
	}
}

// read handles one frame of the server's.
func (c *rawClient) read() {
	var head [9]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		c.closed = true
		return
	}
	payload := make([]byte, binary.BigEndian.Uint32(head[:4])>>8)
	if _, err := io.ReadFull(c, payload); err != nil {
		c.closed = true
		return
	}
	stream := binary.BigEndian.Uint32(head[5:])
	switch kind, ack := head[3], head[4]&flagAck != 0; {
	case kind == frameWindow:
		c.windows[stream] += int(binary.BigEndian.Uint32(payload))
	case kind == frameReset:
		c.reset[stream] = true
	case kind == framePing && ack:
		c.acked = true
	case kind == frameSettings && !ack:
		c.write(frameSettings, flagAck, 0, nil)
	}
}

// open opens a stream with headers of about so many bytes besides those that are needed.
func (c *rawClient) open(stream uint32, path string, more int) {
	block := field(nil, ":method", "POST")
	block = field(field(block, ":scheme", "https"), ":authority", "brain")
	block = field(block, ":path", path)
	block = field(field(block, "content-type", "application/grpc"), "te", "trailers")
	for i := 0; more > 0; i++ {
		name := fmt.Sprintf("x-%06d", i)
		value := strings.Repeat("x", min(1000, max(0, more-40)))
		block = field(block, name, value)
		more -= len(name) + len(value) + 32
	}
	kind := byte(frameHeaders)
	for len(block) > maxFrame && !c.closed {
		c.write(kind, 0, stream, block[:maxFrame])
		kind, block = frameContinuation, block[maxFrame:]
	}
	c.write(kind, flagEndHeaders, stream, block)
	c.windows[stream] = 64 << 10
}

// field appends a header field in HPACK, as a literal that is not indexed.
func field(block []byte, name, value string) []byte {
	block = append(block, 0)
	for _, s := range []string{name, value} {
		if n := len(s); n < 127 {
			block = append(block, byte(n))
		} else {
			block = binary.AppendUvarint(append(block, 127), uint64(n-127))
		}
		block = append(block, s...)
	}
	return block
}

// unfinished sends so many bytes of a message of that size, but for the last one.
func (c *rawClient) unfinished(stream uint32, size int) {
	data := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(size)), make([]byte, size-1)...)
	for len(data) > 0 && !c.closed && !c.reset[stream] {
		n := min(len(data), maxFrame)
		for (c.windows[0] < n || c.windows[stream] < n) && !c.closed && !c.reset[stream] {
			c.read()
		}
		c.write(frameData, 0, stream, data[:n])
		data = data[n:]
		c.windows[0] -= n
		c.windows[stream] -= n
	}
}

// settle waits until the server has handled everything.
func (c *rawClient) settle() {
	c.acked = false
	c.write(framePing, 0, 0, make([]byte, 8))
	for !c.acked && !c.closed {
		c.read()
	}
}

// The received part of a request takes memory before the server knows what the request is for: its headers, and the
// beginning of its first message. All connections and streams of one certificate together may use maxBeforeHello for
// that, in whatever part of the request it is.
func TestWhatACertificateHoldsBeforeItsHelloIsLimited(t *testing.T) {
	const watch = "/kubeproxy.remote.v1.Brain/Watch"
	ca := newAuthority(t)
	config := ca.client(t, "system:node:n1")
	for name, tc := range map[string]struct {
		path            string
		header, message int
		served          bool
		most            int // bytes that all hold, besides the connections
	}{
		"as much as is allowed":            {watch, maxHeaders - 600, maxRequest, true, maxBeforeHello},
		"headers of 1 MB":                  {watch, 1 << 20, 0, false, maxBeforeHello / 10},
		"a little more than is allowed":    {watch, maxHeaders, 0, false, maxBeforeHello / 10},
		"a path of 1 MB":                   {"/" + strings.Repeat("x", 1<<20), 0, 0, false, maxBeforeHello / 10},
		"another method, with much to say": {"/other/Method", maxHeaders - 600, 32 << 10, false, maxBeforeHello / 10},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(quiet(t))
			server, err := New(ctx, Options{Source: newCluster(baseObjects()...)})
			require.NoError(t, err)
			server.maxAnswer = testTimeout // all wait for a Hello at the same time
			ln, err := Listen(ctx, "127.0.0.1:0", 0)
			require.NoError(t, err)
			serveOn(t, ctx, cancel, server, ln, "", ServeOptions{TLS: ca.server(t)})
			require.Eventually(t, server.ready, testTimeout, time.Millisecond)
			before := testkit.LiveHeap()
			var open int
			clients := make([]*rawClient, maxPerPrincipal)
			for i := range clients {
				c := newRawClient(t, ln.Addr().String(), config)
				for stream := uint32(1); stream < 2*maxStreams; stream += 2 {
					c.open(stream, tc.path, tc.header)
					if tc.message > 0 {
						c.unfinished(stream, tc.message)
					}
				}
				c.settle()
				if !c.closed {
					open += maxStreams - len(c.reset)
				}
				clients[i] = c
			}
			held := testkit.LiveHeap() - before
			t.Log("bytes held:", held)
			if assert.LessOrEqual(t, held, tc.most+maxPerPrincipal*bytesOfConnection); tc.served {
				assert.Equal(t, maxPerPrincipal*maxStreams, open)
				assert.Greater(t, held, maxBeforeHello/2, "the test does not see what is held")
			}
			runtime.KeepAlive(clients)
		})
	}
}

// bytesOfConnection is about what a connection takes on both sides, most of it in TLS.
const bytesOfConnection = 128 << 10

// The server does not read from a client that opens streams which are refused, and does not read the answers: gRPC
// keeps all answers that wait, and each may quote the request.
func TestAnswersThatAreNotReadDoNotPileUp(t *testing.T) {
	const streams = 4000
	ca := newAuthority(t)
	server := serveTCP(t, Options{Source: newCluster(baseObjects()...)}, ServeOptions{TLS: ca.server(t)})
	c := newRawClient(t, server.target, ca.client(t, "system:node:n1"))
	before := testkit.LiveHeap()
	block := field(nil, ":method", "POST")
	block = field(field(block, ":scheme", "https"), ":path", "/x")
	block = field(block, "content-type", strings.Repeat("x", maxHeaders/2))
	require.NoError(t, c.SetWriteDeadline(time.Now().Add(2*time.Second))) // the server does not take all of it
	for i := range uint32(streams) {
		c.write(frameHeaders, flagEndHeaders, 2*i+1, block)
	}
	held := testkit.LiveHeap() - before
	t.Log("bytes held:", held)
	assert.True(t, c.closed, "all was taken")
	assert.Less(t, held, 2<<20)
}
