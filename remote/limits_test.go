package remote

import (
	"context"
	"crypto/tls"
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
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
)

// What a client says of itself is kept as long as it stays, and is sent back to it, so there is a limit to its size.
func TestAClientCannotSayTooMuchOfItself(t *testing.T) {
	server := serve(t, ServerOptions{Source: newCluster(baseObjects()...)}, socket(t))
	long := strings.Repeat("x", 1<<20)
	detect := func(d *remotev1.DetectLocal) *remotev1.Hello {
		return &remotev1.Hello{Node: "n1", Options: &remotev1.Options{DetectLocal: d}}
	}
	prefix := &remotev1.Prefix{Address: []byte{10, 0, 0, 0}, Bits: 8}
	for want, hello := range map[string]*remotev1.Hello{
		"the name of the node has 1048576 bytes, more than 253": {Node: long},
		"bridge: has the length 1048576, more than 253":         detect(&remotev1.DetectLocal{Bridge: long}),
		"interfacePrefix: has the length 1048576":               detect(&remotev1.DetectLocal{InterfacePrefix: long}),
		"clusterCIDRs: has the length 101, more than 100": detect(&remotev1.DetectLocal{
			ClusterCIDRs: slices.Repeat([]*remotev1.Prefix{prefix}, 101)}),
		"nodeIPs: has the length 101, more than 100": {Node: "n1",
			Options: &remotev1.Options{NodeIPs: slices.Repeat([][]byte{{192, 0, 2, 1}}, 101)}},
	} {
		_, err := rawStream(t, server.target, hello).Recv()
		assert.Equal(t, codes.InvalidArgument, status.Code(err))
		assert.ErrorContains(t, err, want)
	}
	// It is told what is wrong in few words, whatever it has sent.
	_, err := rawStream(t, server.target,
		&remotev1.Hello{Node: "n1", Options: &remotev1.Options{NodeIPs: [][]byte{[]byte(long)}}}).Recv()
	assert.ErrorContains(t, err, "nodeIPs: 7878")
	assert.LessOrEqual(t, len(status.Convert(err).Message()), maxErrorText)
}

func TestOfALongErrorOnlyTheBeginningStaysInMemory(t *testing.T) {
	r := serve(t, ServerOptions{Source: newCluster(baseObjects()...)}, socket(t))
	s := r.idle(t, "n1")
	problem := strings.Repeat("x", 1<<20)
	_, err := s.take(&remotev1.Request{Ack: &remotev1.Ack{Revision: s.has.revision, Error: problem}})
	require.NoError(t, err)
	assert.Equal(t, problem[:maxErrorText], s.applyErr)
	assert.NotSame(t, unsafe.StringData(problem), unsafe.StringData(s.applyErr), "it would keep the whole text")
}

// One node's certificate does not suffice to take the places of all the others.
func TestANodeHasALimitedNumberOfClients(t *testing.T) {
	server := serve(t, ServerOptions{Source: newCluster(baseObjects()...)}, socket(t))
	for range maxPerNode {
		server.idle(t, "n1")
	}
	_, err := rawStream(t, server.target, &remotev1.Hello{Node: "n1"}).Recv()
	assert.Equal(t, codes.ResourceExhausted, status.Code(err))
	assert.ErrorContains(t, err, "node n1 has 64 clients already")
	receiveBatch(t, rawStream(t, server.target, &remotev1.Hello{Node: "n2"}))
}

// Streams without a Hello are no clients of which there could be too many, so they must not stay.
func TestAStreamWithoutAHelloEnds(t *testing.T) {
	b := openServer(t)
	b.maxAnswer = time.Millisecond
	stop, served := background(t, func(ctx context.Context) error { return b.Serve(ctx, b.ln, ServeOptions{}) })
	_, err := rawStream(t, b.target, nil).Recv()
	assert.Equal(t, codes.DeadlineExceeded, status.Code(err))
	assert.ErrorContains(t, err, "no Hello came")
	stop()
	require.NoError(t, <-served)
}

// The handshake is the only time at which TLS looks at a certificate, and a stream may last for months. To the
// handshake of this test it is earlier than it is.
func TestAStreamEndsWithTheCertificateOfItsClient(t *testing.T) {
	ca := newAuthority(t)
	config := ca.server(t)
	config.Time = func() time.Time { return time.Now().Add(-30 * time.Minute) }
	server := serveTCP(t, ServerOptions{Source: newCluster(baseObjects()...), limits: limits{heartbeat: time.Millisecond}},
		ServeOptions{TLS: config})
	cert := ca.ClientUntil(t, "client", "system:node:n1", time.Now().Add(-10*time.Minute))
	conn, err := grpc.NewClient("passthrough:///"+server.target, grpc.WithTransportCredentials(credentials.NewTLS(
		&tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: ca.Pool})))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(quiet(t), patience)
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

// A socket that has taken the place of another one is not removed with that.
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
	assert.ErrorContains(t, err, target+": there is a file that is no socket")
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "something", string(content))
}
