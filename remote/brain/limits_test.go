package brain

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"sigs.k8s.io/kube-proxy-lib/remote/internal/wire"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// The fields in which a client describes itself are kept while it is connected, and sent back to it, so their size is
// limited.
func TestAClientCannotSayTooMuchOfItself(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...)}, socket(t))
	long := strings.Repeat("x", 1<<17)
	detect := func(d *remotev1.DetectLocal) *remotev1.Hello {
		return &remotev1.Hello{Node: "n1", Options: &remotev1.Options{DetectLocal: d}}
	}
	prefix := &remotev1.Prefix{Address: []byte{10, 0, 0, 0}, Bits: 8}
	for want, hello := range map[string]*remotev1.Hello{
		"the node's name has 131072 bytes, more than 253": {Node: long},
		"bridge: has the length 131072, more than 253":    detect(&remotev1.DetectLocal{Bridge: long}),
		"interfacePrefix: has the length 131072":          detect(&remotev1.DetectLocal{InterfacePrefix: long}),
		"clusterCIDRs: has the length 101, more than 100": detect(&remotev1.DetectLocal{
			ClusterCIDRs: slices.Repeat([]*remotev1.Prefix{prefix}, 101)}),
		"nodeIPs: has the length 101, more than 100": {Node: "n1",
			Options: &remotev1.Options{NodeIPs: slices.Repeat([][]byte{{192, 0, 2, 1}}, 101)}},
	} {
		_, err := rawStream(t, server.target, hello).Recv()
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, want)
	}
	// The error is short, whatever the client has sent.
	_, err := rawStream(t, server.target,
		&remotev1.Hello{Node: "n1", Options: &remotev1.Options{NodeIPs: [][]byte{[]byte(long)}}}).Recv()
	assert.ErrorContains(t, err, "nodeIPs: 7878")
	assert.LessOrEqual(t, len(status.Convert(err).Message()), wire.MaxErrorText)
}

func TestOfALongErrorOnlyTheBeginningStaysInMemory(t *testing.T) {
	r := serve(t, Options{Source: newCluster(baseObjects()...)}, socket(t))
	s := r.idle(t, "n1")
	problem := strings.Repeat("x", 1<<20)
	_, err := s.take(&remotev1.Request{Ack: &remotev1.Ack{Revision: s.has.revision, Error: problem}})
	require.NoError(t, err)
	assert.Equal(t, problem[:wire.MaxErrorText], s.applyErr)
	assert.NotSame(t, unsafe.StringData(problem), unsafe.StringData(s.applyErr), "it would keep the whole text")
}

// One node's certificate cannot use up the limit of all clients.
func TestANodeHasALimitedNumberOfClients(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...)}, socket(t))
	for range maxPerPrincipal {
		server.idle(t, "n1")
	}
	_, err := rawStream(t, server.target, &remotev1.Hello{Node: "n1"}).Recv()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.ErrorContains(t, err, "node n1 already has 64 clients")
	receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "n2"}))
}

// Streams without a Hello do not count towards the limit of clients, so they must end soon.
func TestAStreamWithoutAHelloEnds(t *testing.T) {
	b := openServer(t)
	b.maxAnswer = time.Millisecond
	stop, served := background(t, func(ctx context.Context) error { return b.Serve(ctx, b.ln, ServeOptions{}) })
	_, err := rawStream(t, b.target, nil).Recv()
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	assert.ErrorContains(t, err, "no Hello was received")
	stop()
	require.NoError(t, <-served)
}

// TLS checks a certificate only at the handshake, and a stream may last for months. In this test the handshake takes
// place at an earlier time than the clock says.
func TestAStreamEndsWithTheCertificateOfItsClient(t *testing.T) {
	ca := newAuthority(t)
	config := ca.server(t)
	config.Time = func() time.Time { return time.Now().Add(-30 * time.Minute) }
	server := serveTCP(t, Options{Source: newCluster(baseObjects()...), limits: limits{heartbeat: time.Millisecond}},
		ServeOptions{TLS: config})
	cert := ca.ClientUntil(t, "client", "system:node:n1", time.Now().Add(-10*time.Minute))
	conn, err := grpc.NewClient("passthrough:///"+server.target, grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: ca.Pool})))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(quiet(t), testTimeout)
	defer cancel()
	stream, err := remotev1.NewBrainClient(conn).Watch(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&remotev1.Request{Hello: &remotev1.Hello{}}))
	for err == nil {
		_, err = stream.Recv()
	}
	assert.Equal(t, codes.Unauthenticated, status.Code(err))
	assert.ErrorContains(t, err, "the client's certificate has expired")
}

// A listener that is closed does not remove a socket that has replaced its own.
func TestAListenerRemovesNoSocketButItsOwn(t *testing.T) {
	target := socket(t)
	path := strings.TrimPrefix(target, "unix://")
	old, err := Listen(t.Context(), target, 0)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	ln, err := Listen(t.Context(), target, 0)
	require.NoError(t, err)
	require.NoError(t, old.Close())
	conn, err := net.Dial("unix", path)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	require.NoError(t, ln.Close())
	_, err = os.Stat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestAFileThatIsNoSocketIsNotReplaced(t *testing.T) {
	target := socket(t)
	path := strings.TrimPrefix(target, "unix://")
	require.NoError(t, os.WriteFile(path, []byte("something"), 0o600))
	_, err := Listen(t.Context(), target, 0)
	assert.ErrorContains(t, err, target+": exists and is not a socket")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "something", string(content))
}

// The received part of a message takes memory before it can be checked, so messages are small.
func TestAMessageCannotBeLarge(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...)}, socket(t))
	_, err := rawStream(t, server.target, &remotev1.Hello{Node: strings.Repeat("x", maxRequest)}).Recv()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
}

// The size of a client's answer is limited, too, so digests are requested in portions.
func TestDigestsAreAskedForInPortions(t *testing.T) {
	objects := baseObjects()
	for i := range 20 {
		objects = append(objects, web(fmt.Sprintf("svc-%d", i), fmt.Sprintf("10.0.0.%d", i+1))...)
	}
	var same []string // in a service that does not differ, and is half of the state
	for i := range 40 {
		same = append(same, fmt.Sprintf("10.0.1.%d", i))
	}
	objects = append(objects, web("same", same...)...)
	server := serve(t, Options{Source: newCluster(objects...), limits: limits{maxDigests: 100}}, socket(t))
	buckets := *server.classOf(t, "n1").batches.buckets
	want := map[uint32]bool{}
	for i := range 20 {
		b := wire.BucketOf(name(fmt.Sprintf("svc-%d", i)))
		want[uint32(b)], buckets[b] = true, wire.Digest{}
	}
	client := rawStream(t, server.target, &remotev1.Hello{Node: "n1",
		Resume: &remotev1.Resume{Digest: wire.DigestMessage(buckets.Root(), wire.Digest{})}})
	questions := 0
	for {
		u, err := client.Recv()
		require.NoError(t, err)
		if u.Kind != remotev1.Kind_COMPARE {
			assert.Equal(t, remotev1.Kind_DIFF, u.Kind)
			assert.Len(t, u.Services, 20)
			break
		}
		answer := &remotev1.Digests{}
		if asked := u.Compare.Buckets; len(asked) == 0 {
			answer.Buckets = buckets.Bytes()
		} else {
			questions++
			assert.LessOrEqual(t, len(asked), 3)
			for _, b := range asked {
				assert.True(t, want[b], "once, and not in vain")
				delete(want, b)
			}
		}
		require.NoError(t, client.Send(&remotev1.Request{Digests: answer}))
	}
	assert.GreaterOrEqual(t, questions, 6)
	assert.Empty(t, want)
}

// One certificate opens as many connections as a node may have clients.
func TestACertificateHasALimitedNumberOfConnections(t *testing.T) {
	ca := newAuthority(t)
	server := serveTCP(t, Options{Source: newCluster(baseObjects()...)}, ServeOptions{TLS: ca.server(t)})
	config := ca.client(t, "system:node:n1")
	connect := func(config *tls.Config) (*grpc.ClientConn, error) {
		conn, err := grpc.NewClient("passthrough:///"+server.target,
			grpc.WithTransportCredentials(credentials.NewTLS(config)))
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		stream, err := remotev1.NewBrainClient(conn).Watch(ctx)
		if err == nil {
			require.NoError(t, stream.Send(&remotev1.Request{}))
			_, err = stream.Recv()
		}
		return conn, err
	}
	var last *grpc.ClientConn
	for range maxPerPrincipal {
		conn, err := connect(config)
		require.ErrorContains(t, err, "the first message has to be a Hello") // the connection stays
		last = conn
	}
	_, err := connect(config)
	assert.Equal(t, codes.Unavailable, status.Code(err), err)
	_, err = connect(ca.client(t, "system:node:n2"))
	assert.ErrorContains(t, err, "the first message has to be a Hello")
	require.NoError(t, last.Close())
	require.Eventually(t, func() bool {
		_, err := connect(config)
		return status.Code(err) == codes.InvalidArgument
	}, testTimeout, time.Millisecond)
}

func TestAnIdleConnectionIsClosed(t *testing.T) {
	server := serve(t, Options{Source: newCluster(baseObjects()...), limits: limits{maxIdle: 20 * time.Millisecond}},
		socket(t))
	conn, err := grpc.NewClient(server.target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	conn.Connect()
	for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
		conn.WaitForStateChange(t.Context(), state)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	assert.True(t, conn.WaitForStateChange(ctx, connectivity.Ready), "it is still open")
}
