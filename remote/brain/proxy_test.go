package brain

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/remote"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// proxy passes connections on, and can cut them.
type proxy struct {
	*testkit.Relay
	target string
}

// followThroughProxy runs a client of node n1 through a proxy of its own, and waits until it has its state.
func followThroughProxy(t *testing.T, c *cluster, server *replica) (proxy, *sink.Recorder) {
	t.Helper()
	p, rec := newProxy(t, server.target), &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{p.target}, State: stateN1})
	awaitState(t, c, stateN1, rec)
	return p, rec
}

func newProxy(t testing.TB, to string) proxy {
	t.Helper()
	target := socket(t)
	ln, err := Listen(t.Context(), target, 0)
	require.NoError(t, err)
	p := proxy{testkit.NewRelay(ln, "unix", strings.TrimPrefix(to, "unix://"), nil), target}
	t.Cleanup(p.Close)
	return p
}

// rawStream opens a stream without package remote.
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
