package brain

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// fleet is the clients of the benchmarks. They speak the protocol and keep no state, or what a lightNode keeps: what a
// node holds is what its own machine has room for, and thousands are to have room here.
type fleet struct {
	clients []*fleetClient
	changes int          // that have been made of the cluster
	batches atomic.Int64 // complete ones that clients have received
	resumed atomic.Int64 // of these, those that say that the client has everything
	retries atomic.Int64 // attempts to connect that failed
	digests atomic.Int64 // clients that know the digest of what they have
	failure atomic.Pointer[error]
}

// fleetClient is one client. It acknowledges what it is sent, unless it is stalled.
type fleetClient struct {
	fleet *fleet
	node  string
	zone  int
	tls   *tls.Config

	read, written           atomic.Int64 // bytes of the connection
	readBefore, writeBefore int64        // of these, until the end of the TLS handshake
	messages                atomic.Int64 // received, heartbeats apart
	arrived                 atomic.Int64 // when the last batch was complete, in nanoseconds since 1970
	stall                   atomic.Pointer[chan struct{}]

	// Of a client that has a state, and acknowledges with a pause after the one before:
	light   *lightNode
	pause   time.Duration
	applied time.Time
	begun   atomic.Int64 // bytes of the connection until the first batch of the stream was complete
	begunAt atomic.Int64 // when it was, in nanoseconds since 1970

	mu     sync.Mutex // guards what follows
	digest *remotev1.Digest
	cancel func()
	done   chan struct{}
}

// The values that clients of package remote use.
const (
	firstPause = 250 * time.Millisecond
	maxUpdate  = 64 << 20
)

func newFleet(b *testing.B, ca authority, n int) *fleet {
	f := &fleet{}
	for i := range n {
		f.clients = append(f.clients, &fleetClient{fleet: f, node: fleetNode(i), zone: i % len(fleetZones),
			tls: ca.client(b, "system:node:"+fleetNode(i))})
	}
	b.Cleanup(f.disconnect)
	return f
}

// connect connects clients to a server, some at a time, and returns when each has its first batch.
func (f *fleet) connect(b *testing.B, clients []*fleetClient, address string, atATime int) {
	b.Helper()
	var begun atomic.Int64
	slots := make(chan struct{}, atATime)
	for _, c := range clients {
		slots <- struct{}{}
		go func() {
			<-c.connect(address)
			begun.Add(1)
			<-slots
		}()
	}
	f.await(b, &begun, int64(len(clients)))
}

func (f *fleet) disconnect() {
	var wg sync.WaitGroup
	for _, c := range f.clients {
		wg.Go(c.disconnect)
	}
	wg.Wait()
}

// await waits until a number has been reached.
func (f *fleet) await(b *testing.B, n *atomic.Int64, want int64) {
	b.Helper()
	for deadline := time.Now().Add(10 * time.Minute); n.Load() < want; time.Sleep(time.Millisecond) {
		if err := f.failure.Load(); err != nil {
			require.NoError(b, *err)
		}
		require.True(b, time.Now().Before(deadline), "%d of %d", n.Load(), want)
	}
}

// traffic is what clients have received and sent.
func (f *fleet) traffic(of func(*fleetClient) bool) (read, written int64) {
	for _, c := range f.clients {
		if of(c) {
			read, written = read+c.read.Load(), written+c.written.Load()
		}
	}
	return read, written
}

// messages is how many clients have received.
func (f *fleet) messages(of func(*fleetClient) bool) (n int64) {
	for _, c := range f.clients {
		if of(c) {
			n += c.messages.Load()
		}
	}
	return n
}

func (f *fleet) fail(err error) { f.failure.CompareAndSwap(nil, &err) }

// connect keeps the client connected until disconnect. The channel is closed when it has its first batch.
func (c *fleetClient) connect(address string) (first chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	first, done := make(chan struct{}), make(chan struct{})
	c.mu.Lock()
	c.cancel, c.done = cancel, done
	c.mu.Unlock()
	once := sync.OnceFunc(func() { close(first) })
	go func() {
		defer close(done)
		for got := false; ctx.Err() == nil; {
			err := c.stream(ctx, address, func() {
				got = true
				once()
			})
			if got && ctx.Err() == nil {
				c.fleet.fail(fmt.Errorf("%s: %w", c.node, err))
				return
			}
			if ctx.Err() == nil {
				c.fleet.retries.Add(1)
				wait := firstPause/2 + rand.N(firstPause) // as a Feed does
				if later := (errLater{}); errors.As(err, &later) {
					wait = max(wait, later.after)
				}
				time.Sleep(wait)
			}
		}
	}()
	return first
}

func (c *fleetClient) disconnect() {
	c.mu.Lock()
	cancel, done := c.cancel, c.done
	c.mu.Unlock()
	if cancel != nil {
		cancel()
		c.resume()
		<-done
	}
}

// stream opens a stream, on which the client says what it has, and follows it to its end.
func (c *fleetClient) stream(ctx context.Context, address string, batch func()) error {
	dial := func(ctx context.Context, address string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		return &countingConn{conn, c}, err
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithContextDialer(dial),
		grpc.WithDisableServiceConfig(),
		grpc.WithTransportCredentials(countingCreds{credentials.NewTLS(c.tls), c}), grpc.WithReadBufferSize(4<<10),
		grpc.WithSharedWriteBuffer(true), grpc.WithStaticStreamWindowSize(wire.Window),
		grpc.WithStaticConnWindowSize(wire.Window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(bytesCodec{}), grpc.MaxCallRecvMsgSize(maxUpdate)))
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &remotev1.Brain_ServiceDesc.Streams[0], remotev1.Brain_Watch_FullMethodName)
	if err != nil {
		return err
	}
	hello := &remotev1.Hello{}
	c.mu.Lock()
	if c.digest != nil {
		hello.Resume = &remotev1.Resume{InstanceID: "-", Digest: c.digest}
	}
	c.mu.Unlock()
	follow := c.follow
	if c.light != nil {
		hello, follow = c.light.hello(), c.followLight
	}
	if err := stream.SendMsg(wire.Encode(&remotev1.Request{Hello: hello}).Bytes()); err != nil {
		return err
	}
	return follow(stream, batch)
}

// errLater is the error of a client that the server asks to come again later.
type errLater struct{ after time.Duration }

func (e errLater) Error() string { return fmt.Sprintf("come again after %v", e.after) }

// followLight is follow for a client that has a state.
func (c *fleetClient) followLight(stream grpc.ClientStream, batch func()) error {
	for first := true; ; {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		parsed, err := c.light.states.parse(message)
		if err != nil {
			return err
		}
		kind, u, err := c.light.take(parsed)
		switch {
		case err != nil:
			return err
		case kind == remotev1.Kind_LATER:
			return errLater{time.Duration(u.RetryAfterMillis) * time.Millisecond}
		case kind == remotev1.Kind_COMPARE:
			answer := wire.Encode(c.light.answer(u.GetCompare().GetBuckets()))
			if err := stream.SendMsg(answer.Bytes()); err != nil {
				return err
			}
			continue
		case kind == remotev1.Kind_HEARTBEAT || u.Sync == nil:
			continue
		}
		if kind == remotev1.Kind_RESUMED {
			c.fleet.resumed.Add(1)
		}
		select {
		case <-time.After(time.Until(c.applied.Add(c.pause))):
		case <-stream.Context().Done():
		}
		c.applied = time.Now()
		ack := wire.Encode(&remotev1.Request{Ack: &remotev1.Ack{Revision: u.Sync.Revision,
			PauseMillis: uint32(c.pause.Milliseconds())}})
		if err := stream.SendMsg(ack.Bytes()); err != nil {
			return err
		}
		if first {
			c.begun.Store(c.read.Load() + c.written.Load())
			c.begunAt.Store(time.Now().UnixNano())
			first = false
		}
		c.fleet.batches.Add(1)
		batch()
	}
}

// halt makes the client neither read nor acknowledge, until resume.
func (c *fleetClient) halt() {
	stall := make(chan struct{})
	c.stall.Store(&stall)
}

func (c *fleetClient) resume() {
	if stall := c.stall.Swap(nil); stall != nil {
		close(*stall)
	}
}

// follow takes what comes, and calls a function after each batch.
func (c *fleetClient) follow(stream grpc.ClientStream, batch func()) error {
	for {
		var message []byte
		if err := stream.RecvMsg(&message); err != nil {
			return err
		}
		kind, sync, err := readLight(message)
		if kind != remotev1.Kind_HEARTBEAT {
			c.messages.Add(1)
		}
		switch {
		case err != nil:
			return err
		case kind == remotev1.Kind_HEARTBEAT:
			c.setDigest(sync.GetDigest())
			continue
		case kind == remotev1.Kind_LATER || kind == remotev1.Kind_COMPARE:
			return fmt.Errorf("the server says %v", kind)
		case sync == nil:
			continue
		}
		if stall := c.stall.Load(); stall != nil {
			<-*stall
		}
		c.arrived.Store(time.Now().UnixNano())
		if kind == remotev1.Kind_RESUMED {
			c.fleet.resumed.Add(1)
		} else {
			c.setDigest(nil)
		}
		ack := wire.Encode(&remotev1.Request{Ack: &remotev1.Ack{Revision: sync.Revision}})
		if err := stream.SendMsg(ack.Bytes()); err != nil {
			return err
		}
		c.fleet.batches.Add(1)
		batch()
	}
}

func (c *fleetClient) setDigest(d *remotev1.Digest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if (d == nil) != (c.digest == nil) {
		if d == nil {
			c.fleet.digests.Add(-1)
		} else {
			c.fleet.digests.Add(1)
		}
	}
	c.digest = d
}

// readLight reads the parts of an Update that a light client needs.
func readLight(b []byte) (kind remotev1.Kind, sync *remotev1.Sync, err error) {
	for len(b) > 0 {
		field, wire, n := protowire.ConsumeTag(b)
		if n < 0 {
			return 0, nil, protowire.ParseError(n)
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(field, wire, b); n < 0 {
			return 0, nil, protowire.ParseError(n)
		}
		switch field {
		case 1:
			v, _ := protowire.ConsumeVarint(b)
			kind = remotev1.Kind(v)
		case 10:
			v, _ := protowire.ConsumeBytes(b)
			sync = &remotev1.Sync{}
			if err := proto.Unmarshal(v, sync); err != nil {
				return 0, nil, err
			}
		}
		b = b[n:]
	}
	return kind, sync, nil
}

// bytesCodec takes messages as they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*(v.(*[]byte)) = data.Materialize()
	return nil
}

// countingConn counts the bytes of a client's connections.
type countingConn struct {
	net.Conn
	client *fleetClient
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.client.read.Add(int64(n))
	return n, err
}

func (c *countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.client.written.Add(int64(n))
	return n, err
}

// countingCreds notes how much the handshake took.
type countingCreds struct {
	credentials.TransportCredentials
	client *fleetClient
}

func (c countingCreds) ClientHandshake(ctx context.Context, authority string,
	raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := c.TransportCredentials.ClientHandshake(ctx, authority, raw)
	c.client.readBefore, c.client.writeBefore = c.client.read.Load(), c.client.written.Load()
	return conn, info, err
}

func (c countingCreds) Clone() credentials.TransportCredentials { return c }
