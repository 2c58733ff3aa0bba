package brain

import (
	"context"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// proxy passes connections on, and can cut them.
type proxy struct {
	target string
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool // new connections are closed at once
}

func newProxy(t testing.TB, to string) *proxy {
	t.Helper()
	p := &proxy{target: socket(t), conns: map[net.Conn]struct{}{}}
	ln, err := Listen(t.Context(), p.target, 0)
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", strings.TrimPrefix(to, "unix://"))
			if err != nil || !p.add(conn, out) {
				conn.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{conn, out}, {out, conn}} {
				wg.Go(func() {
					_, _ = io.Copy(way[0], way[1])
					way[0].Close()
					way[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		ln.Close()
		p.close(true)
		wg.Wait()
	})
	return p
}

func (p *proxy) add(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			c.Close()
		} else {
			p.conns[c] = struct{}{}
		}
	}
	return !p.closed
}

// cut ends all connections; new ones are let through.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// close lets nothing through any more, or everything again.
func (p *proxy) close(closed bool) {
	p.mu.Lock()
	p.closed = closed
	p.mu.Unlock()
	if closed {
		p.cut()
	}
}

// rawStream is a client by hand.
func rawStream(t testing.TB, target string, hello *remotev1.Hello) clientStream {
	t.Helper()
	stream, err := streamWith(t, target, insecure.NewCredentials(), hello)
	require.NoError(t, err)
	return stream
}

type clientStream = grpc.BidiStreamingClient[remotev1.Request, remotev1.Update]

// streamWith is rawStream with credentials, which may be refused.
func streamWith(t testing.TB, target string, creds credentials.TransportCredentials,
	hello *remotev1.Hello) (clientStream, error) {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds))
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(func() {
		cancel()
		conn.Close()
	})
	stream, err := remotev1.NewBrainClient(conn).Watch(ctx)
	if err == nil && hello != nil {
		err = stream.Send(&remotev1.Request{Hello: hello})
	}
	return stream, err
}

// receiveBatch receives messages until a sync, heartbeats apart.
func receiveBatch(t testing.TB,
	stream clientStream) (batch []*remotev1.Update) {
	t.Helper()
	for {
		u, err := stream.Recv()
		require.NoError(t, err)
		if u.Kind == remotev1.Kind_HEARTBEAT {
			continue
		}
		batch = append(batch, u)
		if u.Sync != nil {
			return batch
		}
	}
}

func sendAck(t testing.TB, stream clientStream, revision uint64) {
	t.Helper()
	require.NoError(t, stream.Send(&remotev1.Request{Ack: &remotev1.Ack{Revision: revision}}))
}
