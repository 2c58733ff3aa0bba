package remote

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/peer"

	"sigs.k8s.io/kube-proxy-lib/internal/testcert"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// authority makes TLS configurations.
type authority struct{ *testcert.Authority }

func newAuthority(t testing.TB) authority {
	t.Helper()
	return authority{testcert.New(t, t.TempDir())}
}

func (a authority) server(t testing.TB) *tls.Config {
	t.Helper()
	cert := a.Server(t, "brain", net.IPv4(127, 0, 0, 1))
	return &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: a.Pool}
}

func (a authority) client(t testing.TB, commonName string) *tls.Config {
	t.Helper()
	cert := a.Client(t, "client", commonName)
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: a.Pool}
}

// serveTCP starts a server on loopback.
func serveTCP(t testing.TB, opts ServerOptions, who ServeOptions) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(quiet(t))
	server, err := NewServer(ctx, opts)
	require.NoError(t, err)
	ln, err := Listen(ctx, "127.0.0.1:0", 0)
	require.NoError(t, err)
	r := serveOn(t, ctx, cancel, server, ln, ln.Addr().String(), who)
	require.Eventually(t, r.Synced, patience, time.Millisecond)
	return r
}

// With TLS the certificate says which node a client is, whatever the message says.
func TestTheNodesNameComesFromTheCertificate(t *testing.T) {
	ca := newAuthority(t)
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serveTCP(t, ServerOptions{Source: c}, ServeOptions{TLS: ca.server(t)})
	rec := &sink.Recorder{}
	follow(t, rec, Options{Targets: []string{server.target}, TLS: ca.client(t, "system:node:n2")})
	awaitState(t, c, localstate.Options{NodeName: "n2"}, rec)

	refused := func(config *tls.Config, node string) string {
		client, err := NewFeed(Options{Targets: []string{server.target}, TLS: config, Insecure: config == nil,
			State: localstate.Options{NodeName: node}})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(quiet(t), patience)
		defer cancel()
		err = (&dialer{client: client, handler: &nodeHandler{end: func() {}}, answer: patience}).stream(ctx, server.target)
		require.Error(t, err)
		return err.Error()
	}
	assert.Contains(t, refused(ca.client(t, "system:node:n2"), "n1"), `the certificate is for node "n2", not "n1"`)
	assert.Contains(t, refused(ca.client(t, "alice"), "n1"),
		`the certificate is for "alice", which is not system:node:NAME`)
	stranger := newAuthority(t).client(t, "system:node:n1")
	stranger.RootCAs = ca.Pool
	refused(stranger, "n1")
	refused(&tls.Config{RootCAs: ca.Pool}, "n1")
	refused(nil, "n1")
}

func TestAProgramsOwnFunctionMaySayWhichNodeItIs(t *testing.T) {
	c := newCluster(baseObjects()...)
	server := serveTCP(t, ServerOptions{Source: c},
		ServeOptions{Insecure: true, Node: func(ctx context.Context, claimed string) (string, error) {
			p, ok := peer.FromContext(ctx)
			assert.True(t, ok)
			assert.Equal(t, "n1", claimed)
			assert.True(t, strings.HasPrefix(p.Addr.String(), "127.0.0.1:"))
			return "n3", nil
		}})
	rec := &sink.Recorder{}
	follow(t, rec, Options{Targets: []string{server.target}, Insecure: true, State: stateN1})
	awaitState(t, c, localstate.Options{NodeName: "n3"}, rec)
}

func TestNobodyIsLetInByOversight(t *testing.T) {
	ca := newAuthority(t)
	server, err := NewServer(t.Context(), ServerOptions{Source: newCluster()})
	require.NoError(t, err)
	for want, opts := range map[string]ServeOptions{
		"neither TLS nor Insecure":      {},
		"both TLS and Insecure":         {TLS: ca.server(t), Insecure: true},
		"TLS without ClientCAs":         {TLS: &tls.Config{}},
		"no Node function says which":   {Insecure: true},
		"neither TLS nor Insecure\x00u": {Node: ClaimedNode},
	} {
		ln, err := Listen(t.Context(), "127.0.0.1:0", 0)
		require.NoError(t, err)
		assert.ErrorContains(t, server.Serve(t.Context(), ln, opts), strings.TrimSuffix(want, "\x00u"))
	}
	ln, err := Listen(t.Context(), socket(t), 0)
	require.NoError(t, err)
	assert.ErrorContains(t, server.Serve(t.Context(), ln, ServeOptions{TLS: ca.server(t)}), "TLS on a Unix socket")
}

func TestASocketIsForThoseWhomItsModeLets(t *testing.T) {
	target := socket(t)
	path := strings.TrimPrefix(target, "unix://")
	ln, err := Listen(t.Context(), target, 0o660)
	require.NoError(t, err)
	info, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o660), info.Mode().Perm())
	_, err = Listen(t.Context(), target, 0)
	assert.ErrorContains(t, err, "a server listens there already")
	require.NoError(t, ln.Close())
	_, err = os.Stat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)

	left, err := net.Listen("unix", path) // what a process that was killed leaves
	require.NoError(t, err)
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	require.NoError(t, left.Close())
	ln, err = Listen(t.Context(), target, 0)
	require.NoError(t, err)
	info, err = os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, ln.Close())
}

func TestWrongOptionsAreRefused(t *testing.T) {
	_, err := NewFeed(Options{Targets: []string{"brain.default.svc:1", "unix://x", "10.0.0.1"},
		State: localstate.Options{EndpointDetails: true}})
	for _, want := range []string{`target "brain.default.svc:1" is not ADDRESS:PORT`, "has to be absolute",
		"missing port",
		"neither TLS nor Insecure", "options of the server"} {
		assert.ErrorContains(t, err, want)
	}
	_, err = NewFeed(Options{})
	assert.ErrorContains(t, err, "no targets")
	_, err = NewServer(t.Context(), ServerOptions{State: stateN1})
	for _, want := range []string{"no source", "options of clients"} {
		assert.ErrorContains(t, err, want)
	}
}
