package brain

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"sigs.k8s.io/kube-proxy-lib/internal/testkit"
	"sigs.k8s.io/kube-proxy-lib/localstate"
	"sigs.k8s.io/kube-proxy-lib/remote"
	remotev1 "sigs.k8s.io/kube-proxy-lib/remote/v1"
	"sigs.k8s.io/kube-proxy-lib/sink"
)

// authority makes TLS configurations.
type authority struct{ *testkit.Authority }

func newAuthority(t testing.TB) authority {
	t.Helper()
	return authority{testkit.NewAuthority(t, t.TempDir())}
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
func serveTCP(t testing.TB, opts Options, who ServeOptions) *replica {
	t.Helper()
	ctx, cancel := context.WithCancel(quiet(t))
	server, err := New(ctx, opts)
	require.NoError(t, err)
	ln, err := Listen(ctx, "127.0.0.1:0", 0)
	require.NoError(t, err)
	r := serveOn(t, ctx, cancel, server, ln, ln.Addr().String(), who)
	require.Eventually(t, r.ready, testTimeout, time.Millisecond)
	return r
}

// With TLS the certificate says which node a client is, whatever its message names.
func TestTheNodesNameComesFromTheCertificate(t *testing.T) {
	ca := newAuthority(t)
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serveTCP(t, Options{Source: c}, ServeOptions{TLS: ca.server(t)})
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{server.target}, TLS: ca.client(t, "system:node:n2")})
	awaitState(t, c, localstate.Options{NodeName: "n2"}, rec)

	refused := func(config *tls.Config, node string) string {
		creds := insecure.NewCredentials()
		if config != nil {
			creds = credentials.NewTLS(config)
		}
		stream, err := streamWith(t, "passthrough:///"+server.target, creds, &remotev1.Hello{Node: node})
		if err == nil {
			_, err = stream.Recv()
		}
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

// A viewer gets the state of the node that it names. All other clients get that of the certificate's node, also those
// with a viewer's name from another authority.
func TestAViewerNamesTheNode(t *testing.T) {
	ca := newAuthority(t)
	c := newCluster(append(baseObjects(), web("a", "10.0.0.1")...)...)
	server := serveTCP(t, Options{Source: c}, ServeOptions{TLS: ca.server(t), Viewers: []string{"alice"}})
	for _, node := range []string{"n1", "n2"} {
		rec, state := &sink.Recorder{}, localstate.Options{NodeName: node}
		follow(t, rec, remote.Options{Targets: []string{server.target}, TLS: ca.client(t, "alice"), State: state})
		awaitState(t, c, state, rec)
	}
	stranger := newAuthority(t).client(t, "alice")
	stranger.RootCAs = ca.Pool
	for want, who := range map[string]struct {
		config *tls.Config
		node   string
	}{
		`the certificate is for "bob"`:               {ca.client(t, "bob"), "n1"},
		`the certificate is for "alice"`:             {ca.client(t, "alice"), ""},
		`the certificate is for node "n2", not "n1"`: {ca.client(t, "system:node:n2"), "n1"},
		"Unavailable": {stranger, "n1"},
	} {
		stream, err := streamWith(t, "passthrough:///"+server.target, credentials.NewTLS(who.config),
			&remotev1.Hello{Node: who.node})
		if err == nil {
			_, err = stream.Recv()
		}
		assert.ErrorContains(t, err, want)
	}
}

func TestAProgramsOwnFunctionMaySayWhichNodeItIs(t *testing.T) {
	c := newCluster(baseObjects()...)
	server := serveTCP(t, Options{Source: c},
		ServeOptions{Insecure: true, Node: func(ctx context.Context, claimed string) (string, error) {
			p, ok := peer.FromContext(ctx)
			assert.True(t, ok)
			assert.Equal(t, "n1", claimed)
			assert.True(t, strings.HasPrefix(p.Addr.String(), "127.0.0.1:"))
			return "n3", nil
		}})
	rec := &sink.Recorder{}
	follow(t, rec, remote.Options{Targets: []string{server.target}, Insecure: true, State: stateN1})
	awaitState(t, c, localstate.Options{NodeName: "n3"}, rec)
}

func TestNobodyIsLetInByOversight(t *testing.T) {
	ca := newAuthority(t)
	server, err := New(t.Context(), Options{Source: newCluster()})
	require.NoError(t, err)
	for want, opts := range map[string]ServeOptions{
		"neither TLS nor Insecure is set":      {},
		"both TLS and Insecure are set":        {TLS: ca.server(t), Insecure: true},
		"TLS without ClientCAs":                {TLS: &tls.Config{}},
		"Insecure needs a Node function":       {Insecure: true},
		"both Node and Viewers are set":        {TLS: ca.server(t), Node: ClaimedNode, Viewers: []string{"alice"}},
		"neither TLS nor Insecure is set\x00u": {Node: ClaimedNode},
	} {
		ln, err := Listen(t.Context(), "127.0.0.1:0", 0)
		require.NoError(t, err)
		assert.ErrorContains(t, server.Serve(t.Context(), ln, opts), strings.TrimSuffix(want, "\x00u"))
	}
	ln, err := Listen(t.Context(), socket(t), 0)
	require.NoError(t, err)
	assert.ErrorContains(t, server.Serve(t.Context(), ln, ServeOptions{TLS: ca.server(t)}), "TLS on a Unix socket")
}

// A configuration that GetConfigForClient returns must verify clients as well.
func TestAConfigurationForAClientVerifiesIt(t *testing.T) {
	ca := newAuthority(t)
	for name, cas := range map[string]*x509.CertPool{"with authorities": ca.Pool, "without": nil} {
		config := ca.server(t)
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return &tls.Config{Certificates: config.Certificates, ClientCAs: cas}, nil
		}
		server := serveTCP(t, Options{Source: newCluster(baseObjects()...)}, ServeOptions{TLS: config})
		for certificate, admitted := range map[*tls.Config]bool{ca.client(t, "system:node:n1"): cas != nil,
			{RootCAs: ca.Pool}: false} {
			stream, err := streamWith(t, "passthrough:///"+server.target, credentials.NewTLS(certificate),
				&remotev1.Hello{})
			if err == nil {
				_, err = stream.Recv()
			}
			assert.Equal(t, admitted, err == nil, "%s: %v", name, err)
		}
	}
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
	assert.ErrorContains(t, err, "another server already listens there")
	require.NoError(t, ln.Close())
	_, err = os.Stat(path)
	assert.ErrorIs(t, err, os.ErrNotExist)

	_, err = Listen(t.Context(), "unix://"+filepath.Join(filepath.Dir(path), strings.Repeat("d", 200), "s"), 0)
	require.ErrorIs(t, err, os.ErrNotExist)
	long := filepath.Join(filepath.Dir(path), strings.Repeat("d", 100))
	require.NoError(t, os.Mkdir(long, 0o700))
	_, err = Listen(t.Context(), "unix://"+filepath.Join(long, "s"), 0)
	require.ErrorContains(t, err, "the path is too long")

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
	_, err := New(t.Context(), Options{})
	assert.EqualError(t, err, "invalid options: no source")
}

// Until a socket has its mode, no other user can open it, whatever the umask: it would serve any node's state.
func TestASocketCannotBeOpenedBeforeItHasItsMode(t *testing.T) {
	target := socket(t)
	dir := filepath.Dir(strings.TrimPrefix(target, "unix://"))
	watcher, err := fsnotify.NewWatcher()
	require.NoError(t, err)
	defer watcher.Close()
	require.NoError(t, watcher.Add(dir))
	ln, err := Listen(t.Context(), target, 0)
	require.NoError(t, err)
	defer ln.Close()
	var made []string
	for len(made) < 2 {
		select {
		case e := <-watcher.Events:
			if e.Has(fsnotify.Create) {
				made = append(made, filepath.Base(e.Name))
			}
		case <-time.After(testTimeout):
			t.Fatal("only", made)
		}
	}
	assert.True(t, strings.HasPrefix(made[0], "."), "a directory comes first: %v", made)
	assert.Equal(t, "brain.sock", made[1], "then the socket, with its mode")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, left, 1)
}

// A client cannot resume a session from before its authority was removed, because it cannot resume any.
func TestEachConnectionIsVerified(t *testing.T) {
	ca := newAuthority(t)
	renewed := ca.server(t)
	renewed.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return ca.server(t), nil }
	for _, config := range []*tls.Config{ca.server(t), renewed} {
		server := serveTCP(t, Options{Source: newCluster()}, ServeOptions{TLS: config})
		client := ca.client(t, "system:node:n1")
		client.NextProtos, client.ClientSessionCache = []string{"h2"}, tls.NewLRUClientSessionCache(1)
		for range 2 {
			conn, err := tls.Dial("tcp", server.target, client)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(testTimeout)))
			_, err = conn.Read(make([]byte, 1)) // after a session, if the server offers one, come its HTTP/2 settings
			require.NoError(t, err)
			assert.False(t, conn.ConnectionState().DidResume)
			require.NoError(t, conn.Close())
		}
	}
}
